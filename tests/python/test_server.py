"""The same classes at a server that runs: the same answers as an engine of this process gives."""

import asyncio
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest import mock

import numpy as np
from installed import EMBEDDER, HANGS_AFTER_S, RANKER, SETTINGS, TOLERANCE, Isolated
from served import ChatServed, Server

TEXTS = ["the cat sat on the river", "a dog", "river"]
# Keeps a model of the tests from ending an answer by itself.
ENDLESS = {"logit_bias": {"256": -100}}


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

    def test_answers_at_once_are_all_whole(self):
        from magray import Chat

        chat = Chat("chatter", server=self.url)
        lengths = [1 + 7 * number % 60 for number in range(24)]

        async def all_of_them():
            return await asyncio.gather(*(chat.acall("hello", max_tokens=length, **ENDLESS) for length in lengths))

        found = [(answer.tokens, answer.finish) for answer in asyncio.run(all_of_them())]
        self.assertEqual(found, [(length, "length") for length in lengths])

    def test_streams_of_one_thread_may_be_nested(self):
        from magray import Chat

        chat = Chat("chatter", server=self.url)
        outer, tokens = chat.stream("hello", max_tokens=200, **ENDLESS), []
        next(outer)
        for piece in chat.stream("hello", max_tokens=9, **ENDLESS):
            tokens += [chat("hello", max_tokens=3, **ENDLESS).tokens]
        self.assertEqual((piece.tokens, set(tokens)), (9, {3}))
        self.assertEqual([(piece.tokens, piece.finish) for piece in outer if piece.finish], [(200, "length")])


def event(**choice):
    return b"data: " + json.dumps({"choices": [{"index": 0} | choice]}).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST, LAST, DONE = event(delta={"content": "a"}), event(delta={}, finish_reason="length"), b"data: [DONE]\n\n"
# What ends early, by how it does.
CUT = {
    "before the first event": (False, b""),
    "between events": (False, FIRST),
    "before the end is told": (False, FIRST + LAST),
    "amid an event": (False, FIRST + LAST[:20]),
    "between chunks": (True, chunk(FIRST)),
    "amid a chunk": (True, chunk(FIRST) + b"ff\r\nda"),
    "with a whole body": (True, chunk(FIRST) + chunk(b"")),
}


class Streaming(ThreadingHTTPServer):
    """A server that has a model, whose streams are what a test lets them be."""

    daemon_threads = True

    def __init__(self, stream, is_chunked=False):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = HANGS_AFTER_S

            def log_message(self, *_):
                pass

            def do_GET(self):
                body = b'{"data": [{"id": "chatter", "does": "generate"}]}'
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(200)
                self.send_header(*(("transfer-encoding", "chunked") if is_chunked else ("connection", "close")))
                self.end_headers()
                stream(self)
                self.close_connection = True

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()


class ServerEndsTest(Isolated):
    def chat(self, stream, is_chunked=False):
        from magray import Chat

        server = Streaming(stream, is_chunked)
        self.addCleanup(server.stop)
        return Chat("chatter", server=server.url)

    def test_a_stream_that_is_cut_is_an_error(self):
        from magray import MagrayError

        for name, (is_chunked, body) in CUT.items():
            with self.subTest(cut=name):
                chat = self.chat(lambda handler: handler.wfile.write(body), is_chunked)
                with self.assertRaisesRegex(MagrayError, "ended a stream early"):
                    chat("hello")
                with self.assertRaisesRegex(MagrayError, "ended a stream early"):
                    asyncio.run(chat.acall("hello"))

    def test_what_a_server_says_amid_a_stream_is_an_error(self):
        from magray import MagrayError

        told = b'data: {"error": {"message": "the device is gone", "type": "server_error"}}\n\n'
        with self.assertRaisesRegex(MagrayError, "the device is gone"):
            self.chat(lambda handler: handler.wfile.write(FIRST + told))("hello")
        with self.assertRaisesRegex(MagrayError, "why its answer ended"):
            self.chat(lambda handler: handler.wfile.write(FIRST + DONE))("hello")
        whole = self.chat(lambda handler: handler.wfile.write(FIRST + LAST + DONE))("hello")
        self.assertEqual((whole.text, whole.finish), ("a", "length"))

    def test_a_server_hears_of_a_reader_that_leaves(self):
        gone = threading.Event()

        def stream(handler):
            handler.wfile.write(FIRST)
            # Nothing comes but the end.
            if not handler.connection.recv(1):
                gone.set()

        chat = self.chat(stream)

        async def cancelled():
            pieces = chat.astream("hello")
            await anext(pieces)
            # The second piece never comes.
            task = asyncio.ensure_future(anext(pieces))
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        async def closed():
            pieces = chat.astream("hello")
            await anext(pieces)
            await pieces.aclose()

        def dropped():
            pieces = chat.stream("hello")
            next(pieces)
            pieces.close()

        for leave in (lambda: asyncio.run(cancelled()), lambda: asyncio.run(closed()), dropped):
            gone.clear()
            leave()
            self.assertTrue(gone.wait(HANGS_AFTER_S))

    def test_a_reader_that_left_before_it_asked_asks_no_more(self):
        from magray import Cancelled
        from magray.server import Server

        asked = threading.Event()
        server = Streaming(lambda handler: asked.set())
        self.addCleanup(server.stop)
        far = Server(server.url)
        connection = far.connection()
        connection.interrupt()
        with self.assertRaises(Cancelled):
            next(far.lines("/v1/chat/completions", {}, connection))
        self.assertFalse(asked.is_set())
