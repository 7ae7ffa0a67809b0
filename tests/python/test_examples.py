"""Scripts of sentence-transformers run after one line is changed, and their vectors are those of sentence-transformers.

The references are those of tests/data: vectors of sentence-transformers for the sentences that the scripts have.
"""

import csv
import os
import re
import sys
import unittest
from pathlib import Path

import numpy as np
from installed import ROOT, Isolated, run

EXAMPLES = sorted(Path(__file__).with_name("examples").glob("*.py"))
MODEL = "all-MiniLM-L6-v2"
COSINE_MIN = 0.9999
CHANGED = re.compile(r"^from sentence_transformers import", re.MULTILINE)
# Runs a script, and writes down the vectors of whole texts that it asked for.
RECORDED = """
import runpy, sys
import numpy as np
from magray import sentence_transformers
plain, texts, rows = sentence_transformers.SentenceTransformer.encode, [], []
def encode(self, sentences, **arguments):
    found = plain(self, sentences, **arguments)
    is_whole = not arguments.get("prompt") and not arguments.get("prompt_name") and arguments.get("precision") is None
    if is_whole and self.truncate_dim is None:
        some = [sentences] if isinstance(sentences, str) else sentences
        texts.extend(some)
        rows.extend(np.reshape(found, (len(some), -1)))
    return found
sentence_transformers.SentenceTransformer.encode = encode
runpy.run_path(sys.argv[1], run_name="__main__")
np.savez(sys.argv[2], texts=texts, rows=rows)
"""


def has_model():
    from magray import places
    from magray._magray import MagrayError

    try:
        places.find(MODEL, pull=False)
    except MagrayError:
        return False
    return True


class ExamplesTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        if not has_model() and not os.environ.get("MAGRAY_REQUIRE_MODEL"):
            raise unittest.SkipTest(f"the model {MODEL} is not in the store: magray pull")
        with open(ROOT / "tests" / "data" / "stsb-en-dev.csv", newline="", encoding="utf-8") as file:
            first, second, _ = zip(*csv.reader(file))
        cls.references = dict(zip(first + second, np.load(ROOT / "tests" / "data" / "stsb-minilm-f16.npy").astype(np.float32)))

    def test_scripts_run_with_one_changed_line(self):
        self.assertEqual(len(EXAMPLES), 10)
        for example in EXAMPLES:
            with self.subTest(example=example.name):
                text = example.read_text()
                self.assertEqual(len(CHANGED.findall(text)), 1)
                changed = self.home / example.name
                changed.write_text(CHANGED.sub("from magray.sentence_transformers import", text))
                recorded = self.home / "recorded.npz"
                code, printed, told = run(RECORDED, changed, recorded)
                self.assertEqual(code, 0, printed + told)
                found = np.load(recorded)
                expected = np.stack([self.references[text] for text in found["texts"]])
                lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(found["rows"], axis=1)
                worst = ((expected * found["rows"]).sum(axis=1) / lengths).min()
                print(f"{example.name}: {len(expected)} vectors, the least cosine {worst:.6f}", file=sys.stderr)
                self.assertGreaterEqual(worst, COSINE_MIN)
