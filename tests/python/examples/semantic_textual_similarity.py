"""Compares two lists of sentences with each other."""

from sentence_transformers import SentenceTransformer

model = SentenceTransformer("sentence-transformers/all-MiniLM-L6-v2")

sentences1 = [
    "People are playing cricket.",
    "A man is playing a guitar.",
    "The cougar is chasing the bear.",
    "The man cut down a tree with an axe.",
    "The man is playing the guitar.",
]
sentences2 = [
    "Men are playing cricket.",
    "A man is playing a flute.",
    "A cougar is chasing a bear.",
    "A man chops down a tree with an axe.",
    "A man is playing a guitar.",
]

embeddings1 = model.encode(sentences1)
embeddings2 = model.encode(sentences2)
similarities = model.similarity(embeddings1, embeddings2)

for idx_i, sentence1 in enumerate(sentences1):
    print(sentence1)
    for idx_j, sentence2 in enumerate(sentences2):
        print(f" - {sentence2: <60}: {similarities[idx_i][idx_j]:.4f}")
assert all(similarities[i][i] > 0.3 for i in range(len(sentences1)))
