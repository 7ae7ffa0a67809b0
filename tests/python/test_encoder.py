"""Vectors in this process: their form, their memory, prompts, precisions, mistakes."""

import asyncio
import gc
import json
import pickle
from pathlib import Path
from unittest import mock

import numpy as np
from installed import EMBEDDER, ENGINE, RANKER, SETTINGS, TOLERANCE, Isolated, run

TEXTS = ["the cat sat on the river", "a dog", "", "river", "the river and the cat"]


class EncoderTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from magray import Encoder

        cls.encoder = Encoder(EMBEDDER, **SETTINGS)
        cls.addClassCleanup(cls.encoder.close)

    def test_importing_the_package_loads_neither_numpy_nor_the_engine(self):
        code = "import sys, magray; print(sorted(name for name in ('numpy', 'magray._magray', 'asyncio') if name in sys.modules))"
        self.assertEqual(run(code), (0, "[]\n", ""))

    def test_rows_have_the_order_of_the_texts_and_one_text_is_a_vector(self):
        rows = self.encoder.encode(TEXTS)
        self.assertEqual((rows.shape, rows.dtype), ((5, self.encoder.get_sentence_embedding_dimension()), np.float32))
        for text, row in zip(TEXTS, rows):
            self.assertLess(abs(self.encoder.encode(text) - row).max(), TOLERANCE)
        self.assertEqual(self.encoder.encode([]).shape, (0, rows.shape[1]))

    def test_an_array_owns_the_memory_that_the_engine_wrote(self):
        from magray._magray import Numbers

        rows = self.encoder.encode(TEXTS)
        self.assertIsInstance(rows.base, Numbers)
        self.assertTrue(rows.flags.writeable and rows.flags.c_contiguous)
        kept, one = rows.copy(), rows[1]
        del rows
        gc.collect()
        self.encoder.encode(TEXTS * 50)
        np.testing.assert_array_equal(one, kept[1])
        one += 1

    def test_many_texts_in_several_windows_are_those_of_one(self):
        texts = [f"river {number % 7}" for number in range(5000)]
        rows = self.encoder.encode(texts, batch_size=100)
        expected = self.encoder.encode(texts[:7])
        self.assertLess(abs(rows - np.tile(expected, (715, 1))[:5000]).max(), TOLERANCE)

    def test_rows_are_cut_and_then_scaled(self):
        whole = self.encoder.encode(TEXTS)
        cut = self.encoder.encode(TEXTS, truncate_dim=8)
        np.testing.assert_array_equal(cut, whole[:, :8])
        scaled = self.encoder.encode(TEXTS, truncate_dim=8, normalize_embeddings=True)
        np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), 1, atol=1e-5)
        np.testing.assert_allclose(scaled, cut / np.linalg.norm(cut, axis=1, keepdims=True), atol=1e-5)

    def test_precisions_are_those_of_sentence_transformers(self):
        rows = self.encoder.encode(TEXTS)
        bits = self.encoder.encode(TEXTS, precision="ubinary")
        np.testing.assert_array_equal(bits, np.packbits(rows > 0, axis=1))
        signed = self.encoder.encode(TEXTS, precision="binary")
        np.testing.assert_array_equal(signed, (bits.astype(int) - 128).astype(np.int8))
        for precision, dtype in (("int8", np.int8), ("uint8", np.uint8)):
            small = self.encoder.encode(TEXTS, precision=precision)
            self.assertEqual(small.dtype, dtype)
            steps = (rows.max(0) - rows.min(0)) / 255
            back = (small.astype(np.float32) + (128 if precision == "int8" else 0)) * steps + rows.min(0)
            self.assertTrue((abs(back - rows) <= steps * 1.01 + 1e-6).all())

    def test_token_embeddings_have_a_row_a_token(self):
        by_text = self.encoder.encode(TEXTS, output_value="token_embeddings")
        counts = [len(ids) for ids in self.encoder.tokens(TEXTS)]
        self.assertEqual([len(rows) for rows in by_text], counts)

    def test_a_prompt_is_put_before_each_text(self):
        from magray import Encoder

        told = Encoder(EMBEDDER, prompts={"query": "the cat "}, engine=self.encoder.engine)
        expected = self.encoder.encode(["the cat sat", "the cat river"])
        for rows in (
            told.encode(["sat", "river"], prompt_name="query"),
            self.encoder.encode(["sat", "river"], prompt="the cat "),
            told.encode_query(["sat", "river"]),
        ):
            self.assertLess(abs(rows - expected).max(), TOLERANCE)
        # The model has a prompt "passage" of its own.
        expected = self.encoder.encode(["sat"], prompt="passage: ")
        np.testing.assert_allclose(told.encode_document(["sat"]), expected, atol=TOLERANCE)
        self.assertGreater(abs(expected - self.encoder.encode(["sat"])).max(), TOLERANCE)
        np.testing.assert_allclose(asyncio.run(told.aencode_document(["sat"])), expected, atol=TOLERANCE)
        np.testing.assert_allclose(asyncio.run(told.aencode_query("sat")), told.encode_query("sat"), atol=TOLERANCE)

    def test_mistakes_are_named(self):
        from magray import Encoder, MagrayError

        for wrong, message in (
            (lambda: self.encoder.encode(["a"], prompt_name="no"), "no prompt named 'no'"),
            (lambda: self.encoder.encode(["a"], precision="int3"), "no precision 'int3'"),
            (lambda: self.encoder.encode(["a"], batch_size=0), "batch_size is 0"),
            (lambda: self.encoder.encode(["a"], output_value="x"), "not 'x'"),
            (lambda: self.encoder.encode(["a"], device="cuda"), "computes on 'cpu'"),
            (lambda: self.encoder.encode(["a"], truncate_dim=-1), "at least one"),
            (lambda: Encoder(EMBEDDER, **SETTINGS | {"device": "tpu"}), "no device 'tpu'"),
            (lambda: Encoder(EMBEDDER, **SETTINGS | {"precision": "f7"}), "no precision 'f7'"),
            (lambda: Encoder(EMBEDDER, **SETTINGS | {"backend": "x"}), "no backend 'x'"),
            (lambda: Encoder(RANKER, **SETTINGS), "does not embed"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                wrong()
        with self.assertRaises(TypeError):
            self.encoder.encode([1])
        with self.assertRaises(UnicodeEncodeError):
            self.encoder.encode(["\ud800"])
        with self.assertRaisesRegex(MagrayError, "not in the store"):
            Encoder("nobody/has-this-model", pull=False, **SETTINGS)

    def test_several_are_awaited_at_once(self):
        async def all_of_them():
            return await asyncio.gather(*(self.encoder.aencode([text, "a"]) for text in TEXTS))

        for text, rows in zip(TEXTS, asyncio.run(all_of_them())):
            self.assertLess(abs(rows - self.encoder.encode([text, "a"])).max(), TOLERANCE)

    def test_a_task_that_is_cancelled_cancels_its_work(self):
        from magray import Cancelled

        engine, kept = self.encoder.engine, []
        embed, texts = engine._embed, ["the river and the cat " * 50] * 2000

        def kept_alive(*asked):
            kept.append(embed(*asked))
            return kept[-1]

        def finished():
            return sum(device["texts"] for device in engine.status()["devices"])

        async def cancelled():
            before = finished()
            # What is dropped is cancelled too: this test keeps it.
            with mock.patch.object(engine, "_embed", kept_alive):
                task = asyncio.ensure_future(self.encoder.aencode(texts))
                while finished() == before:
                    await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            # All that the queue still has is computed.
            while engine.status()["requests"]:
                await asyncio.sleep(0)
            self.assertLess(finished() - before, len(texts))
            with self.assertRaises(Cancelled):
                kept[0].wait(0)
            return await self.encoder.aencode("a")

        np.testing.assert_allclose(asyncio.run(cancelled()), self.encoder.encode("a"), atol=TOLERANCE)

    def test_it_travels_as_its_settings(self):
        again = pickle.loads(pickle.dumps(self.encoder))
        np.testing.assert_allclose(again.encode("river"), self.encoder.encode("river"), atol=TOLERANCE)
        again.close()

    def test_what_was_closed_says_so(self):
        from magray import Engine

        with Engine(EMBEDDER, **ENGINE) as engine:
            self.assertEqual(engine.embed(["a"]).shape[0], 1)
        with self.assertRaisesRegex(ValueError, "closed"):
            engine.embed(["a"])

    def test_status_names_the_devices(self):
        status = self.encoder.engine.status()
        self.assertEqual([device["name"] for device in status["devices"]], ["cpu"])

    def test_a_fault_of_a_simulated_gpu_fails_no_call(self):
        from magray import Engine

        settings = ENGINE | {"device": "auto"}
        with Engine(EMBEDDER, simulated_gpus=1, faults="sim:0/crash@batch=1, sim:0/illegal_address@batch=9", **settings) as engine:
            rows = engine.embed(TEXTS * 40, portion=4)
        np.testing.assert_allclose(rows, self.encoder.encode(TEXTS * 40), atol=TOLERANCE)

    def test_a_batch_in_which_workers_ended_by_chance_is_computed_in_halves(self):
        from magray.batches import Embedder

        faults = "sim:0/crash@batch=1, sim:0/crash@batch=2"
        embedder = Embedder(EMBEDDER, simulated_gpus=1, faults=faults, **SETTINGS | {"device": "require-gpu"})
        np.testing.assert_allclose(embedder.rows(TEXTS), self.encoder.encode(TEXTS), atol=TOLERANCE)
        embedder.encoder.close()

    def test_a_text_that_ends_every_worker_is_named(self):
        from magray import WorkerLost
        from magray.batches import Embedder

        vocabulary = json.loads((Path(EMBEDDER) / "tokenizer.json").read_text())["model"]["vocab"]
        faults = f"sim:0/poison@id={vocabulary['dog']}"
        embedder = Embedder(EMBEDDER, simulated_gpus=1, faults=faults, **SETTINGS | {"device": "require-gpu"})
        with self.assertRaisesRegex(WorkerLost, "row 1 of a batch"):
            embedder.rows(TEXTS)
        self.assertEqual(len(embedder.rows(TEXTS[2:])), 3)
        embedder.encoder.close()
