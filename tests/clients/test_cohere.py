"""Cohere's client, both versions of its API: reranking and embeddings."""

import cohere
from served import EMBEDDER, QUERY, RANKER, TEXTS, Served, embedded, ranked


class Cohere(Served):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.skip_without("/v2/rerank", "/v2/embed")

    def client(self):
        return cohere.ClientV2(api_key="none", base_url=self.url)

    def test_reranking(self):
        found = self.client().rerank(model=RANKER, query=QUERY, documents=TEXTS, top_n=3)
        places, _ = ranked(self.server)
        self.assertEqual([result.index for result in found.results], places[:3])
        scores = [result.relevance_score for result in found.results]
        self.assertEqual(scores, sorted(scores, reverse=True))

    def test_reranking_by_the_first_version(self):
        client = cohere.Client(api_key="none", base_url=self.url)
        found = client.rerank(model=RANKER, query=QUERY, documents=TEXTS)
        self.assertEqual([result.index for result in found.results], ranked(self.server)[0])

    def test_embeddings(self):
        kinds = {"input_type": "search_document", "embedding_types": ["float"]}
        found = self.client().embed(model=EMBEDDER, texts=TEXTS, **kinds)
        self.assert_near(found.embeddings.float_, embedded(TEXTS))

    def test_an_unknown_model_is_an_error_that_the_client_knows(self):
        with self.assertRaises(cohere.NotFoundError) as caught:
            self.client().rerank(model="no-such-model", query=QUERY, documents=TEXTS)
        self.assertIn("no-such-model", caught.exception.body["message"])
