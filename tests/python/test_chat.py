"""Conversations in this process: whole, piece by piece, constrained, awaited, left."""

import asyncio
import json
from pathlib import Path

import chat_model
from installed import EMBEDDER, SETTINGS, Isolated

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
ASKED = {"max_tokens": 24, "seed": 7}


class ChatTest(Isolated):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from magray import Chat

        folder = Path(cls.home, "chatter")
        chat_model.write(folder)
        cls.chat = Chat(str(folder), **SETTINGS)
        cls.addClassCleanup(cls.chat.close)

    def test_an_answer_is_the_sum_of_its_pieces(self):
        pieces = list(self.chat.stream("hello", **ASKED))
        answer = self.chat([{"role": "user", "content": "hello"}], **ASKED)
        self.assertEqual("".join(piece.text for piece in pieces), answer.text)
        self.assertIn(answer.finish, ("stop", "length"))
        self.assertTrue(0 < answer.tokens <= 24)
        self.assertEqual([piece.finish for piece in pieces if piece.finish], [answer.finish])

    def test_a_schema_is_kept_to(self):
        answer = self.chat("is it?", schema=SCHEMA, max_tokens=200, seed=1)
        self.assertIsInstance(json.loads(answer.text)["ok"], bool)
        chosen = self.chat("which?", choices=["red", "green"], seed=1)
        self.assertIn(chosen.text, ("red", "green"))
        self.assertRegex(self.chat("when?", regex="[0-9]{4}", seed=1).text, "^[0-9]{4}$")

    def test_a_text_goes_on_without_a_template(self):
        self.assertEqual(self.chat.complete("once", **ASKED).text, self.chat.complete("once", **ASKED).text)

    def test_an_answer_is_awaited(self):
        whole = self.chat("hello", **ASKED)
        self.assertEqual(asyncio.run(self.chat.acall("hello", **ASKED)).text, whole.text)

    def test_a_reader_that_leaves_ends_the_answer(self):
        pieces = self.chat.stream("hello", max_tokens=8000, seed=3)
        next(pieces)
        pieces.close()
        self.assertEqual(self.chat("hello", **ASKED).text, self.chat("hello", **ASKED).text)

    def test_mistakes_are_named(self):
        from magray import Chat

        for wrong, message in (
            (lambda: self.chat([]), "no message"),
            (lambda: self.chat([{"role": "king", "content": "a"}]), "no role 'king'"),
            (lambda: self.chat("a", temperature=-1), "temperature"),
            (lambda: self.chat("a", temprature=1), "temprature"),
            (lambda: self.chat("a", schema={}, regex="a"), "only one"),
            (lambda: self.chat("a", tool_choice="required"), "no tool"),
            (lambda: Chat(EMBEDDER, **SETTINGS), "generates no text"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                wrong()
