"""Embeds lines of text with sentence-transformers in f32, for references. Runs under the peers' Python only.

Use: python -m compare.references MODEL_DIR < LINES > JSON LINES
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(sys.argv[1], device="cpu")
    texts = [line.rstrip("\n") for line in sys.stdin]
    for vector in model.encode(texts, batch_size=32, show_progress_bar=False, normalize_embeddings=True):
        print(json.dumps([float(value) for value in vector]), file=answers)
    answers.flush()


if __name__ == "__main__":
    main()
