"""Puts sentences into as many groups as are wanted."""

import numpy as np
from sentence_transformers import SentenceTransformer

embedder = SentenceTransformer("all-MiniLM-L6-v2")

corpus = [
    "A man with a hard hat is dancing.",
    "A man wearing a hard hat is dancing.",
    "A man is feeding a mouse to a snake.",
    "The man is feeding a mouse to the snake.",
    "A man is erasing a chalk board.",
    "The man is erasing the chalk board.",
]

corpus_embeddings = embedder.encode(corpus)
num_clusters = 3
centres = corpus_embeddings[::2].copy()
for _ in range(5):
    assignment = np.argmin(((corpus_embeddings[:, None] - centres) ** 2).sum(-1), axis=1)
    centres = np.stack([corpus_embeddings[assignment == i].mean(0) for i in range(num_clusters)])

for cluster in range(num_clusters):
    print("Cluster", cluster + 1, [corpus[i] for i in np.flatnonzero(assignment == cluster)])
assert assignment.tolist() == [0, 0, 1, 1, 2, 2]
