"""Triton's client for HTTP, which KServe's users have too: the v2 protocol, with tensors as bytes and as JSON."""

import numpy as np
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from served import CLASSIFIER, EMBEDDER, QUERY, RANKER, TEXTS, AsyncServed, Served, embedded, ranked
from tritonclient.utils import InferenceServerException


def texts_input(name, texts, module=triton, binary=True):
    tensor = module.InferInput(name, [len(texts)], "BYTES")
    tensor.set_data_from_numpy(np.array(texts, dtype=object), binary_data=binary)
    return tensor


class Triton(Served):
    def setUp(self):
        self.client = triton.InferenceServerClient(self.url.removeprefix("http://"))
        self.addCleanup(self.client.close)

    def test_the_server_and_its_models_are_ready(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(EMBEDDER))
        self.assertTrue(self.client.is_model_ready(EMBEDDER, "1"))
        self.assertFalse(self.client.is_model_ready("no-such-model"))

    def test_metadata(self):
        self.assertIn("binary_tensor_data", self.client.get_server_metadata()["extensions"])
        model = self.client.get_model_metadata(EMBEDDER)
        self.assertEqual([output["datatype"] for output in model["outputs"]], ["FP32"])
        self.assertEqual(self.client.get_model_metadata(EMBEDDER, "1"), model)
        self.assertEqual(self.client.get_model_config(EMBEDDER)["input"][-1]["data_type"], "TYPE_STRING")
        self.assertIn(RANKER, [model["name"] for model in self.client.get_model_repository_index()])

    def test_texts_become_vectors_in_every_form(self):
        expected = embedded(TEXTS)
        for binary_in in (True, False):
            for outputs in (None, [triton.InferRequestedOutput("embedding", binary_data=True)], [triton.InferRequestedOutput("embedding", binary_data=False)]):
                with self.subTest(binary_in=binary_in, outputs=outputs and outputs[0]._get_tensor()):
                    inputs = [texts_input("text", TEXTS, binary=binary_in)]
                    found = self.client.infer(EMBEDDER, inputs, outputs=outputs, request_id="7")
                    self.assert_near(found.as_numpy("embedding").tolist(), expected)
                    self.assertEqual(found.get_response()["id"], "7")

    def test_bodies_may_be_packed(self):
        inputs = [texts_input("text", TEXTS * 50)]
        found = self.client.infer(EMBEDDER, inputs, request_compression_algorithm="gzip", response_compression_algorithm="gzip")
        self.assert_near(found.as_numpy("embedding").tolist()[: len(TEXTS)], embedded(TEXTS))

    def test_several_requests_at_once(self):
        asked = [self.client.async_infer(EMBEDDER, [texts_input("text", [text])]) for text in TEXTS]
        found = [one.get_result().as_numpy("embedding").tolist()[0] for one in asked]
        self.assert_near(found, embedded(TEXTS))

    def test_texts_are_ranked_and_classified(self):
        places, scores = ranked(self.server)
        found = self.client.infer(RANKER, [texts_input("query", [QUERY]), texts_input("text", TEXTS)]).as_numpy("score")
        self.assertEqual(np.argsort(-found, kind="stable").tolist(), places)
        self.assert_near([sorted(found.tolist(), reverse=True)], [scores])
        classes = self.client.infer(CLASSIFIER, [texts_input("text", TEXTS)]).as_numpy("score")
        np.testing.assert_allclose(classes.sum(axis=1), 1, atol=1e-4)

    def test_errors_say_what_is_wrong(self):
        for inputs, said in (
            ([texts_input("input-0", TEXTS)], "there is no input 'input-0'"),
            ([texts_input("query", TEXTS), texts_input("text", TEXTS)], "'query' is one text"),
        ):
            with self.assertRaisesRegex(InferenceServerException, said):
                self.client.infer(EMBEDDER, inputs)
        with self.assertRaisesRegex(InferenceServerException, "no-such-model"):
            self.client.infer("no-such-model", [texts_input("text", TEXTS)])


class TritonAsync(AsyncServed):
    async def test_texts_become_vectors(self):
        async with triton_aio.InferenceServerClient(self.url.removeprefix("http://")) as client:
            found = await client.infer(EMBEDDER, [texts_input("text", TEXTS, triton_aio)])
        self.assert_near(found.as_numpy("embedding").tolist(), embedded(TEXTS))
