"""Compares sentences by the first numbers of their vectors."""

from sentence_transformers import SentenceTransformer

matryoshka_dim = 128
model = SentenceTransformer("all-MiniLM-L6-v2", truncate_dim=matryoshka_dim)
whole = SentenceTransformer("all-MiniLM-L6-v2")

sentences = [
    "A toddler walks down a hallway.",
    "A plane is landing.",
    "A panda is climbing.",
    "Kids are dancing on stage.",
]

embeddings = model.encode(sentences)
print(embeddings.shape)
assert embeddings.shape == (len(sentences), matryoshka_dim)
assert abs(embeddings - whole.encode(sentences)[:, :matryoshka_dim]).max() < 1e-3

similarities = model.similarity(embeddings, embeddings)
print(similarities)
