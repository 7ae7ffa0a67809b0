"""Computes embeddings of some sentences."""

from sentence_transformers import SentenceTransformer

model = SentenceTransformer("all-MiniLM-L6-v2")

sentences = [
    "A man with a hard hat is dancing.",
    "A young child is riding a horse.",
    "A man is feeding a mouse to a snake.",
    "A woman is playing the guitar.",
    "A woman is playing the flute.",
    "A woman is cutting an onion.",
]

embeddings = model.encode(sentences)

for sentence, embedding in zip(sentences, embeddings):
    print("Sentence:", sentence)
    print("Embedding:", embedding[:4], embedding.shape)
