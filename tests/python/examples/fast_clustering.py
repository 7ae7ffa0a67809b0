"""Groups sentences that are near each other."""

import time

from sentence_transformers import SentenceTransformer, util

model = SentenceTransformer("all-MiniLM-L6-v2")

corpus_sentences = [
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

corpus_embeddings = model.encode(corpus_sentences, batch_size=64, show_progress_bar=True, convert_to_tensor=False)

start_time = time.time()
clusters = util.community_detection(corpus_embeddings, min_community_size=2, threshold=0.75)
print(f"Clustering done after {time.time() - start_time:.2f} sec")
for i, cluster in enumerate(clusters):
    print(f"Cluster {i + 1}, #{len(cluster)} Elements")
    for sentence_id in cluster:
        print("\t", corpus_sentences[sentence_id])
assert clusters
