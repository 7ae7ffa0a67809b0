"""Tests of the program that reads streams: what it counts, and what it takes for a stream that was cut. A made-up server answers."""

import json
import shutil
import socketserver
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "stream_load.c"
EVENT = 'data: {"choices":[{"text":"a"}]}\n\n'
USAGE = 'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":5}}\n\n'
END = "data: [DONE]\n\n"


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n".encode()


class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        length = 0
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = json.loads(self.rfile.read(length))
        if body.get("status"):
            self.wfile.write(b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        # An event that comes in two pieces is one event.
        whole = chunk(EVENT)
        for at in range(4):
            self.wfile.write(whole[: at + 9])
            self.wfile.flush()
            self.wfile.write(whole[at + 9 :])
        self.wfile.write(chunk(USAGE))
        if not body.get("cut"):
            self.wfile.write(chunk(END) + b"0\r\n\r\n")


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True


@unittest.skipUnless(shutil.which("cc"), "there is no C compiler")
class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = Path(cls.folder.name) / "stream_load"
        subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(cls.program), str(SOURCE)], check=True)
        cls.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()
        cls.folder.cleanup()

    def read(self, body, streams, rounds, *slow):
        bodies = Path(self.folder.name) / "bodies"
        bodies.write_text(json.dumps(body) + "\n")
        words = [self.program, self.server.server_address[1], "/", bodies, streams, rounds]
        words += [slow[0], bodies, 0] if slow else []
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_tokens_are_those_that_the_usage_tells(self):
        found = self.read({}, 3, 2)
        self.assertEqual((found["tokens"], found["failed"]), (3 * 2 * 5, 0))
        self.assertGreater(found["first_token_ms"], 0)

    def test_streams_that_are_cut_or_refused_have_failed(self):
        self.assertEqual(self.read({"cut": True}, 2, 1)["failed"], 2)
        self.assertEqual(self.read({"status": 429}, 2, 1)["failed"], 2)

    def test_slow_streams_are_not_counted(self):
        self.assertEqual(self.read({}, 1, 1, 4)["tokens"], 5)


if __name__ == "__main__":
    unittest.main()
