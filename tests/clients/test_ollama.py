"""Ollama's client: embeddings of both kinds, and what it asks about models."""

import ollama
from served import EMBEDDER, TEXTS, Served, embedded


class Ollama(Served):
    def client(self):
        return ollama.Client(host=self.url)

    def test_embeddings(self):
        found = self.client().embed(model=EMBEDDER, input=TEXTS)
        self.assert_near(found.embeddings, embedded(TEXTS))
        self.assertEqual(found.model, EMBEDDER)
        self.assertGreater(found.prompt_eval_count, len(TEXTS))
        self.assert_near(self.client().embed(model=EMBEDDER, input="river").embeddings, embedded(["river"]))

    def test_options_without_values_are_taken(self):
        found = self.client().embed(model=EMBEDDER, input="river", options=ollama.Options(), keep_alive="5m")
        self.assert_near(found.embeddings, embedded(["river"]))

    def test_the_older_kind(self):
        found = self.client().embeddings(model=EMBEDDER, prompt="river")
        self.assert_near([found.embedding], embedded(["river"]))

    def test_models(self):
        names = [model.model.split(":")[0] for model in self.client().list().models]
        self.assertIn(EMBEDDER, names)
        self.client().embed(model=EMBEDDER, input="river")
        running = [model.model.split(":")[0] for model in self.client().ps().models]
        self.assertIn(EMBEDDER, running)
        self.assertIsNotNone(self.client().show(EMBEDDER).modelinfo)

    def test_an_unknown_model_is_an_error_that_the_client_knows(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client().embed(model="no-such-model", input="river")
        self.assertEqual(caught.exception.status_code, 404)
        self.assertIn("no-such-model", caught.exception.error)
