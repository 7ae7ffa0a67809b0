"""Puts instructions before texts."""

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(
    "all-MiniLM-L6-v2",
    prompts={"classification": "Classify the following text: ", "retrieval": "Retrieve semantically similar text: "},
)

sentences = [
    "A man plays the guitar.",
    "A guy is playing hackysack",
    "A man is talking with other women on the beach.",
]

embeddings = model.encode(sentences)
with_name = model.encode(sentences, prompt_name="classification")
with_text = model.encode(sentences, prompt="Classify the following text: ")
print(abs(with_name - with_text).max(), model.similarity_pairwise(embeddings, with_name))
assert abs(with_name - with_text).max() < 1e-3 < abs(with_name - embeddings).max()
