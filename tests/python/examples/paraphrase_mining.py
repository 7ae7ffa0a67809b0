"""Finds sentences that say the same."""

from sentence_transformers import SentenceTransformer, util

model = SentenceTransformer("all-MiniLM-L6-v2")

sentences = [
    "A man with a hard hat is dancing.",
    "A man wearing a hard hat is dancing.",
    "A man is feeding a mouse to a snake.",
    "The man is feeding a mouse to the snake.",
    "A man is erasing a chalk board.",
    "The man is erasing the chalk board.",
    "A woman peels a potato.",
    "A woman is peeling a potato.",
    "The cougar is chasing the bear.",
    "A cougar is chasing a bear.",
]

paraphrases = util.paraphrase_mining(model, sentences)

for score, i, j in paraphrases[0:5]:
    print(f"{sentences[i]} \t\t {sentences[j]} \t\t Score: {score:.4f}")
    assert i // 2 == j // 2
