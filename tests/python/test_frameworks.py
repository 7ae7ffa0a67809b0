"""The classes for LlamaIndex and Haystack, where these are installed."""

import asyncio
import importlib.util
import unittest

import numpy as np
from installed import EMBEDDER, RANKER, SETTINGS, TOLERANCE, Isolated

TEXTS = ["the cat sat on the river", "a dog", "river"]


class FrameworksTest(Isolated):
    @unittest.skipUnless(importlib.util.find_spec("llama_index"), "llama-index-core is not installed")
    def test_llama_index_embeds_and_ranks(self):
        from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

        from magray import Encoder
        from magray.llama_index import MagrayEmbedding, MagrayRerank

        embedding, encoder = MagrayEmbedding(EMBEDDER, **SETTINGS), Encoder(EMBEDDER, **SETTINGS)
        expected, query = encoder.encode_document(TEXTS), encoder.encode_query("river")
        for rows, wanted in (
            (embedding.get_text_embedding_batch(TEXTS), expected),
            (asyncio.run(embedding.aget_text_embedding_batch(TEXTS)), expected),
            (asyncio.run(embedding.aget_text_embedding(TEXTS[0])), expected[0]),
            (embedding.get_query_embedding("river"), query),
            (asyncio.run(embedding.aget_query_embedding("river")), query),
        ):
            np.testing.assert_allclose(rows, wanted, atol=TOLERANCE)
        nodes = [NodeWithScore(node=TextNode(text=text), score=0.0) for text in TEXTS]
        ranked = MagrayRerank(RANKER, top_n=2, **SETTINGS).postprocess_nodes(nodes, QueryBundle("river"))
        self.assertEqual(len(ranked), 2)
        self.assertGreaterEqual(ranked[0].score, ranked[1].score)

    @unittest.skipUnless(importlib.util.find_spec("haystack"), "haystack-ai is not installed")
    def test_haystack_runs_a_pipeline(self):
        from haystack import Document, Pipeline
        from haystack.core.serialization import allow_deserialization_module

        from magray.haystack import MagrayDocumentEmbedder, MagrayRanker, MagrayTextEmbedder

        pipeline = Pipeline()
        pipeline.add_component("documents", MagrayDocumentEmbedder(EMBEDDER, **SETTINGS))
        pipeline.add_component("ranker", MagrayRanker(RANKER, top_k=2, **SETTINGS))
        pipeline.connect("documents.documents", "ranker.documents")
        allow_deserialization_module("magray.haystack")
        again = Pipeline.from_dict(pipeline.to_dict())
        documents = [Document(content=text) for text in TEXTS]
        found = again.run({"documents": {"documents": documents}, "ranker": {"query": "river"}})["ranker"]["documents"]
        self.assertEqual(len(found), 2)
        row = MagrayTextEmbedder(EMBEDDER, **SETTINGS).run("a dog")["embedding"]
        by_text = {one.content: one.embedding for one in found}
        self.assertTrue(all(len(one) == len(row) for one in by_text.values()))
