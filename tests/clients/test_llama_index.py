"""LlamaIndex' clients of text-embeddings-inference: embeddings, sync and async, and reranking."""

import asyncio

from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker
from served import EMBEDDER, QUERY, Served, embedded, ranked

# A node without text is no node.
TEXTS = ["the cat sat on the river", "a dog", "river"]


class LlamaIndex(Served):
    def test_embeddings(self):
        client = TextEmbeddingsInference(base_url=self.url, model_name=EMBEDDER)
        self.assert_near(client.get_text_embedding_batch(TEXTS), embedded(TEXTS))
        self.assert_near([client.get_query_embedding("river")], embedded(["river"]))
        found = asyncio.run(client.aget_text_embedding_batch(TEXTS))
        self.assert_near(found, embedded(TEXTS))

    def test_reranking(self):
        client = Reranker(base_url=self.url, model_name="any", top_n=2)
        nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
        found = client.postprocess_nodes(nodes, QueryBundle(QUERY))
        places, scores = ranked(self.server, TEXTS)
        self.assertEqual([node.text for node in found], [TEXTS[place] for place in places[:2]])
        self.assert_near([[node.score for node in found]], [scores[:2]])
