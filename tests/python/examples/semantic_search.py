"""Finds the sentences of a corpus that are nearest to queries."""

from sentence_transformers import SentenceTransformer, util

embedder = SentenceTransformer("all-MiniLM-L6-v2")

corpus = [
    "A woman is cooking eggs.",
    "A man is playing a guitar.",
    "An animal is chewing on something.",
    "A man is playing a flute.",
    "A man is playing soccer.",
    "A girl is riding a horse.",
    "A man is lifting weights in a garage.",
    "An animal is biting a persons finger.",
    "A woman is reading.",
    "A man is crying.",
    "The lady cracked an egg into a bowl.",
    "A band is performing on a stage.",
]

corpus_embeddings = embedder.encode_document(corpus)

queries = [
    "A woman is cooking something.",
    "A man is playing a trumpet.",
    "An animal is chewing on a key chain.",
    "A man is playing guitar.",
]

query_embeddings = embedder.encode_query(queries)
hits = util.semantic_search(query_embeddings, corpus_embeddings, top_k=3)

for number, (query, found) in enumerate(zip(queries, hits)):
    print("Query:", query)
    for hit in found:
        print(f"  {corpus[hit['corpus_id']]} (score: {hit['score']:.4f})")
    assert number in [hit["corpus_id"] for hit in found]
