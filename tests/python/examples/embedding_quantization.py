"""Makes vectors smaller: one byte or one bit a number."""

from sentence_transformers import SentenceTransformer, quantize_embeddings

model = SentenceTransformer("all-MiniLM-L6-v2")

sentences = [
    "Two little girls are talking on the phone.",
    "Someone is stirring chili in a kettle.",
    "The woman is cracking eggs into a bowl.",
    "A woman puts flour on a piece of meat.",
    "A man is talking on a phone.",
    "A man is playing an electronic keyboard.",
    "A man is playing a guitar.",
    "A man is jumping into water.",
]

embeddings = model.encode(sentences)
binary_embeddings = model.encode(sentences, precision="binary")
int8_embeddings = quantize_embeddings(embeddings, precision="int8", calibration_embeddings=embeddings)

print(embeddings.nbytes, int8_embeddings.nbytes, binary_embeddings.nbytes)
assert embeddings.nbytes == 4 * int8_embeddings.nbytes == 32 * binary_embeddings.nbytes
