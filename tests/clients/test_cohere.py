"""Cohere's client, both versions of its API: reranking and embeddings."""

import base64
import struct

import cohere
from served import EMBEDDER, QUERY, RANKER, TEXTS, AsyncServed, Served, embedded, ranked


class Cohere(Served):
    def client(self):
        return cohere.ClientV2(api_key="none", base_url=self.url)

    def test_reranking(self):
        found = self.client().rerank(model=RANKER, query=QUERY, documents=TEXTS, top_n=3, max_tokens_per_doc=100)
        places, _ = ranked(self.server)
        self.assertEqual([result.index for result in found.results], places[:3])
        scores = [result.relevance_score for result in found.results]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertTrue(found.id)
        self.assertEqual(found.meta.billed_units.search_units, 1)

    def test_reranking_by_the_first_version(self):
        client = cohere.Client(api_key="none", base_url=self.url)
        found = client.rerank(model=RANKER, query=QUERY, documents=TEXTS, return_documents=True)
        places, _ = ranked(self.server)
        self.assertEqual([result.index for result in found.results], places)
        self.assertEqual([result.document.text for result in found.results], [TEXTS[place] for place in places])

    def test_embeddings_by_the_first_version(self):
        client = cohere.Client(api_key="none", base_url=self.url)
        ask = {"model": EMBEDDER, "texts": TEXTS, "input_type": "classification"}
        found = client.embed(**ask)
        self.assert_near(found.embeddings, embedded(TEXTS))
        self.assertEqual((found.response_type, found.texts), ("embeddings_floats", TEXTS))
        found = client.embed(**ask, embedding_types=["float", "int8", "ubinary"])
        self.assertEqual(found.response_type, "embeddings_by_type")
        self.assert_near(found.embeddings.float_, embedded(TEXTS))
        self.assertEqual([len(row) for row in found.embeddings.int8], [len(row) for row in found.embeddings.float_])

    def test_the_input_type_chooses_the_prompt_of_the_model(self):
        prompts = {"search_document": "passage", "search_query": "query", "classification": None, "clustering": None}
        for kind, prompt in prompts.items():
            with self.subTest(kind):
                found = self.client().embed(model=EMBEDDER, texts=TEXTS, input_type=kind, embedding_types=["float"])
                self.assert_near(found.embeddings.float_, embedded(TEXTS, prompt))
                self.assertGreater(found.meta.billed_units.input_tokens, len(TEXTS))

    def test_other_encodings_are_those_numbers(self):
        kinds = ["float", "base64", "int8", "uint8", "binary", "ubinary"]
        ask = {"model": EMBEDDER, "texts": TEXTS, "input_type": "classification"}
        found = self.client().embed(**ask, embedding_types=kinds).embeddings
        for floats, small, shifted in zip(found.float_, found.int8, found.uint8, strict=True):
            self.assertLessEqual(max(abs(byte / 127 - value) for byte, value in zip(small, floats)), 0.5 / 127 + 1e-6)
            self.assertEqual(shifted, [byte + 128 for byte in small])
        for floats, text, signed, unsigned in zip(found.float_, found.base64, found.binary, found.ubinary, strict=True):
            self.assert_near([struct.unpack(f"<{len(floats)}f", base64.b64decode(text))], [floats])
            signs = "".join("1" if value > 0 else "0" for value in floats)
            self.assertEqual(unsigned, [int(signs[at : at + 8], 2) for at in range(0, len(signs), 8)])
            self.assertEqual(signed, [byte - 128 for byte in unsigned])

    def test_fewer_dimensions_have_length_one(self):
        ask = {"model": EMBEDDER, "texts": ["river"], "input_type": "classification", "output_dimension": 8}
        [vector] = self.client().embed(**ask, embedding_types=["float"]).embeddings.float_
        self.assertEqual(len(vector), 8)
        self.assertAlmostEqual(sum(value * value for value in vector), 1.0, places=4)

    def test_texts_in_parts(self):
        inputs = [{"content": [{"type": "text", "text": "river"}]}]
        ask = {"model": EMBEDDER, "inputs": inputs, "input_type": "classification"}
        found = self.client().embed(**ask, embedding_types=["float"])
        self.assert_near(found.embeddings.float_, embedded(["river"]))

    def test_errors_are_those_that_the_client_knows(self):
        with self.assertRaises(cohere.NotFoundError) as caught:
            self.client().rerank(model="no-such-model", query=QUERY, documents=TEXTS)
        self.assertIn("no-such-model", caught.exception.body["message"])
        with self.assertRaises(cohere.UnprocessableEntityError) as caught:
            ask = {"model": EMBEDDER, "texts": TEXTS, "input_type": "classification"}
            self.client().embed(**ask, embedding_types=["float"], output_dimension=10_000)
        self.assertIn("dimensions", caught.exception.body["message"])


class Async(AsyncServed):
    async def test_reranking(self):
        async with cohere.AsyncClientV2(api_key="none", base_url=self.url) as client:
            found = await client.rerank(model=RANKER, query=QUERY, documents=TEXTS)
        self.assertEqual([result.index for result in found.results], ranked(self.server)[0])
