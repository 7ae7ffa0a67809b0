"""Scales vectors to length 1, so that the dot product is the cosine."""

import numpy as np
from sentence_transformers import SentenceTransformer, util

model = SentenceTransformer("all-MiniLM-L6-v2", device="cpu")

docs = [
    "A woman is mixing ingrediants.",
    "Someone is shredding cabbage leaves with a knife.",
    "A slow lori walks around.",
    "A little boy is vacuuming the floor.",
    "A woman is applying eye liner to her eyelid using an eye pencil.",
    "A man is making a bed.",
    "A man plays a keyboard.",
    "A rabbit is playing with a toy rabbit.",
]

query = 'A animal is walking around.'
query_emb = model.encode(query, normalize_embeddings=True)
doc_emb = model.encode(docs, normalize_embeddings=True)
scores = util.dot_score(query_emb, doc_emb)[0].tolist()

for doc, score in sorted(zip(docs, scores), key=lambda x: x[1], reverse=True):
    print(score, doc)
assert np.argmax(scores) == 2
