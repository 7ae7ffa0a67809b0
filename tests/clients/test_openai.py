"""OpenAI's own client, sync and async, with what it sends by default: vectors come as base64."""

import asyncio

import openai
from served import EMBEDDER, TEXTS, AsyncServed, Served, embedded


class Sync(Served):
    environment = {"MAGRAY_API_KEYS": "a-key"}

    def client(self, key="a-key"):
        client = openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0)
        self.addCleanup(client.close)
        return client

    def test_vectors_order_and_usage(self):
        found = self.client().embeddings.create(model=EMBEDDER, input=TEXTS)
        self.assert_near([item.embedding for item in found.data], embedded(TEXTS))
        self.assertEqual([item.index for item in found.data], list(range(len(TEXTS))))
        self.assertEqual(found.model, EMBEDDER)
        alone = [self.client().embeddings.create(model=EMBEDDER, input=text) for text in TEXTS]
        self.assert_near([one.data[0].embedding for one in alone], embedded(TEXTS))
        self.assertEqual(found.usage.total_tokens, sum(one.usage.prompt_tokens for one in alone))

    def test_floats_are_the_numbers_of_base64(self):
        base64 = self.client().embeddings.create(model=EMBEDDER, input="river")
        floats = self.client().embeddings.create(model=EMBEDDER, input="river", encoding_format="float")
        self.assert_near([floats.data[0].embedding], [base64.data[0].embedding])

    def test_fewer_dimensions_have_length_one(self):
        found = self.client().embeddings.create(model=EMBEDDER, input="river", dimensions=8)
        vector = found.data[0].embedding
        self.assertEqual(len(vector), 8)
        self.assertAlmostEqual(sum(value * value for value in vector), 1.0, places=4)

    def test_models(self):
        names = [model.id for model in self.client().models.list()]
        self.assertIn(EMBEDDER, names)
        self.assertEqual(self.client().models.retrieve(EMBEDDER).id, EMBEDDER)
        self.assertEqual(self.client().models.retrieve(f"sentence-transformers/{EMBEDDER}").id, EMBEDDER)

    def test_errors_are_those_that_the_client_knows(self):
        with self.assertRaises(openai.AuthenticationError):
            self.client("another").models.list()
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client().embeddings.create(model="no-such-model", input="river")
        self.assertIn("no-such-model", caught.exception.body["message"])
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().embeddings.create(model=EMBEDDER, input="river", dimensions=10_000)
        self.assertEqual(caught.exception.param, "dimensions")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client().embeddings.create(model=EMBEDDER, input=[])
        self.assertEqual(caught.exception.param, "input")


class Async(AsyncServed):
    async def test_many_at_once(self):
        async with openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0) as client:
            asked = [client.embeddings.create(model=EMBEDDER, input=text) for text in TEXTS * 4]
            answers = await asyncio.gather(*asked)
        self.assert_near([answer.data[0].embedding for answer in answers], embedded(TEXTS) * 4)
