"""LangChain's store of vectors for Qdrant: dense, sparse and hybrid, with filters and deletes."""

import hashlib

from langchain_core.embeddings import Embeddings
from langchain_qdrant import QdrantVectorStore, RetrievalMode
from langchain_qdrant.sparse_embeddings import SparseEmbeddings, SparseVector
from qdrant_client import QdrantClient, models
from served import EMBEDDER, Served

TEXTS = ["a cat by the river", "a dog in the garden", "the king of the hill", "boats under the bridge"]


class Dense(Embeddings):
    """Vectors of the server."""

    def __init__(self, server):
        self.server = server

    def embed_documents(self, texts):
        found = self.server.post("/v1/embeddings", {"input": texts, "model": EMBEDDER})["data"]
        return [one["embedding"] for one in found]

    def embed_query(self, text):
        return self.embed_documents([text])[0]


class Words(SparseEmbeddings):
    """One dimension a word."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        words = {int(hashlib.sha256(word.encode()).hexdigest()[:7], 16) for word in text.split()}
        return SparseVector(indices=sorted(words), values=[1.0] * len(words))


class LangChain(Served):
    def store(self, mode):
        name = mode.value
        client = QdrantClient(url=self.url, timeout=60)
        dense, sparse = Dense(self.server), Words()
        size = len(dense.embed_query("a"))
        client.create_collection(
            name,
            vectors_config=models.VectorParams(size=size, distance=models.Distance.COSINE),
            sparse_vectors_config={"langchain-sparse": models.SparseVectorParams(modifier=models.Modifier.IDF)},
        )
        self.addCleanup(client.delete_collection, name)
        return QdrantVectorStore(
            client, name, embedding=dense, sparse_embedding=sparse, retrieval_mode=mode
        )

    def check(self, mode, query, expected):
        store = self.store(mode)
        ids = store.add_texts(TEXTS, metadatas=[{"number": number} for number in range(len(TEXTS))])
        found = store.similarity_search_with_score(query, k=2)
        self.assertEqual(found[0][0].page_content, expected)
        self.assertGreaterEqual(found[0][1], found[-1][1])
        only = models.Filter(must=[models.FieldCondition(key="metadata.number", match=models.MatchValue(value=2))])
        self.assertEqual([one.page_content for one in store.similarity_search("the king", k=3, filter=only)], [TEXTS[2]])
        self.assertEqual([one.page_content for one in store.get_by_ids(ids[:1])], [TEXTS[0]])
        store.delete(ids[:1])
        self.assertEqual(store.get_by_ids(ids[:1]), [])

    def test_dense(self):
        self.check(RetrievalMode.DENSE, TEXTS[1], TEXTS[1])

    def test_sparse(self):
        self.check(RetrievalMode.SPARSE, "boats and the bridge", TEXTS[3])

    def test_hybrid(self):
        self.check(RetrievalMode.HYBRID, TEXTS[1], TEXTS[1])

    def test_a_collection_is_made_of_texts(self):
        store = QdrantVectorStore.from_texts(TEXTS, Dense(self.server), url=self.url, collection_name="made")
        self.addCleanup(store.client.delete_collection, "made")
        self.assertEqual(store.similarity_search(TEXTS[0], k=1)[0].page_content, TEXTS[0])
        retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 4})
        self.assertEqual(retriever.invoke(TEXTS[0])[0].page_content, TEXTS[0])
