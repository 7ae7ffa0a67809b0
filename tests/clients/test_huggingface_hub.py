"""The hub's InferenceClient: embeddings and similarity, by the address of the server alone."""

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from served import TEXTS, Served, embedded


class Hub(Served):
    def client(self, path=""):
        return InferenceClient(self.url + path, timeout=60)

    def test_embeddings(self):
        for path in ["", "/embed"]:
            found = self.client(path).feature_extraction("river")
            self.assert_near(found.tolist(), embedded(["river"]))

    def test_similarity(self):
        found = self.client().sentence_similarity("river", other_sentences=TEXTS)
        first, *others = embedded(["river", *TEXTS])
        expected = [sum(a * b for a, b in zip(first, other)) for other in others]
        self.assert_near([found], [expected])

    def test_an_error_tells_its_reason(self):
        with self.assertRaises(HfHubHTTPError) as caught:
            self.client("/embed").feature_extraction("river", dimensions=10_000)
        self.assertEqual(caught.exception.response.status_code, 422)
        self.assertIn("dimensions", str(caught.exception))
