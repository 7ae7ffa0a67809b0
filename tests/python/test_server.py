"""The same classes at a server that runs: the same answers as an engine of this process gives."""

import asyncio
import os
from unittest import mock

import numpy as np
from installed import EMBEDDER, RANKER, SETTINGS, TOLERANCE, Isolated
from served import ChatServed, Server

TEXTS = ["the cat sat on the river", "a dog", "river"]


class ServerTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server = Server()
        cls.addClassCleanup(cls.server.stop)

    def test_vectors_are_those_of_an_engine_of_this_process(self):
        from magray import Encoder

        own, far = Encoder(EMBEDDER, **SETTINGS), Encoder("bert", server=self.server.url)
        self.assertEqual(far.get_sentence_embedding_dimension(), own.get_sentence_embedding_dimension())
        np.testing.assert_allclose(far.encode(TEXTS), own.encode(TEXTS), atol=TOLERANCE)
        np.testing.assert_allclose(far.encode(TEXTS[0], truncate_dim=4), own.encode(TEXTS[0], truncate_dim=4), atol=TOLERANCE)
        np.testing.assert_allclose(asyncio.run(far.aencode(TEXTS)), own.encode(TEXTS), atol=TOLERANCE)
        self.assertEqual(far.encode([]).shape, (0, own.get_sentence_embedding_dimension()))

    def test_the_variable_names_a_server(self):
        from magray import Encoder

        with mock.patch.dict(os.environ, {"MAGRAY_SERVER": self.server.url}):
            self.assertIsNone(Encoder("bert").engine)
            self.assertIsNotNone(Encoder(EMBEDDER, **SETTINGS).engine)

    def test_scores_are_those_of_an_engine_of_this_process(self):
        from magray import CrossEncoder

        own = CrossEncoder(RANKER, **SETTINGS)
        far = CrossEncoder("xlm-roberta-classify", server=self.server.url)
        pairs = [("river", text) for text in TEXTS] + [("a dog", TEXTS[0])]
        np.testing.assert_allclose(far.predict(pairs), own.predict(pairs), atol=TOLERANCE)

    def test_mistakes_are_named(self):
        from magray import Encoder, MagrayError

        with self.assertRaisesRegex(MagrayError, "no answer from"):
            Encoder("bert", server="http://127.0.0.1:9")
        with self.assertRaisesRegex(ValueError, "no address"):
            Encoder("bert", server="ftp://x")
        with self.assertRaisesRegex(MagrayError, "no model nothing"):
            Encoder("nothing", server=self.server.url)
        far = Encoder("bert", server=self.server.url)
        with self.assertRaisesRegex(ValueError, "no prompt named"):
            far.encode(["a"], prompt_name="no")
        with self.assertRaisesRegex(ValueError, "gives no token_embeddings"):
            far.encode(["a"], output_value="token_embeddings")


class ServerChatTest(ChatServed):
    def test_an_answer_comes_piece_by_piece(self):
        from magray import Chat

        chat = Chat("chatter", server=self.url)
        pieces = list(chat.stream("hello", max_tokens=12, seed=5))
        answer = chat("hello", max_tokens=12, seed=5)
        self.assertEqual("".join(piece.text for piece in pieces), answer.text)
        self.assertEqual((answer.finish, answer.tokens), (pieces[-1].finish, pieces[-1].tokens))
        self.assertEqual(asyncio.run(chat.acall("hello", max_tokens=12, seed=5)).text, answer.text)
        with self.assertRaisesRegex(ValueError, "engine of this process"):
            chat("hello", regex="a")
