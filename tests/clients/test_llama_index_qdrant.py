"""LlamaIndex' store of vectors for Qdrant: nodes come in, are found, filtered and deleted."""

from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import FilterCondition, MetadataFilter, MetadataFilters, VectorStoreQuery
from llama_index.core.vector_stores.types import VectorStoreQueryMode
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import QdrantClient
from served import EMBEDDER, Served

TEXTS = ["a cat by the river", "a dog in the garden", "the king of the hill", "boats under the bridge"]


def by_words(texts):
    """One dimension a word, as indices and values of each text."""
    words = [sorted({sum(word.encode()) for word in text.split()}) for text in texts]
    return words, [[1.0] * len(own) for own in words]


class LlamaIndex(Served):
    def embed(self, texts):
        found = self.server.post("/v1/embeddings", {"input": texts, "model": EMBEDDER})["data"]
        return [one["embedding"] for one in found]

    def nodes(self):
        def node(number, text, vector):
            source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"document-{number % 2}")}
            return TextNode(text=text, embedding=vector, metadata={"number": number}, relationships=source)

        return [node(number, text, vector) for number, (text, vector) in enumerate(zip(TEXTS, self.embed(TEXTS)))]

    def store(self, name, **options):
        client = QdrantClient(url=self.url, timeout=60)
        self.addCleanup(client.delete_collection, name)
        return QdrantVectorStore(collection_name=name, client=client, **options)

    def test_nodes_are_found_filtered_and_deleted(self):
        store = self.store("nodes")
        store.add(self.nodes())
        found = store.query(VectorStoreQuery(query_embedding=self.embed([TEXTS[1]])[0], similarity_top_k=2))
        self.assertEqual(found.nodes[0].text, TEXTS[1])
        self.assertGreater(found.similarities[0], 0.999)
        two = MetadataFilters(filters=[MetadataFilter(key="number", value=2)], condition=FilterCondition.AND)
        asked = VectorStoreQuery(query_embedding=self.embed([TEXTS[1]])[0], similarity_top_k=4, filters=two)
        self.assertEqual([node.text for node in store.query(asked).nodes], [TEXTS[2]])
        store.delete("document-0")
        self.assertEqual({node.text for node in store.get_nodes()}, {TEXTS[1], TEXTS[3]})

    def test_hybrid(self):
        store = self.store("hybrid", enable_hybrid=True, sparse_doc_fn=by_words, sparse_query_fn=by_words)
        store.add(self.nodes())
        asked = VectorStoreQuery(
            query_embedding=self.embed([TEXTS[3]])[0],
            query_str="boats under the bridge",
            similarity_top_k=2,
            sparse_top_k=4,
            mode=VectorStoreQueryMode.HYBRID,
        )
        self.assertEqual(store.query(asked).nodes[0].text, TEXTS[3])
