"""A server of magray for a client's tests: on a port of its own, in a home of its own, with models of the repository.

Hands on nothing of the environment that the tests run in, and computes in f32, so that vectors can be compared.
"""

import asyncio
import json
import os
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

import chat_model

FIXTURES = Path(__file__).resolve().parents[2] / "crates" / "magray-engine" / "tests" / "fixtures"
BINARY = os.environ.get("MAGRAY_BIN", "magray")
EMBEDDER, RANKER, CLASSIFIER = "bert", "xlm-roberta-classify", "bert-classify"
# Written by chat_model.
CHATTER = "chatter"
COMPUTING = ["--device", "cpu", "--threads", "1", "--precision", "f32"]
TEXTS = ["the cat sat on the river", "a dog", "", "river"]
QUERY = "the river and the cat"
# Batches of other sizes sum up in another order.
TOLERANCE = 1e-4


class Served(unittest.TestCase):
    """Tests that share one server, which is started with the first and ended with the last of them."""

    # Keys are given through the environment, other settings as TOML.
    environment = {}
    settings = ""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.environment, cls.settings)
        cls.addClassCleanup(cls.server.stop)
        cls.url = cls.server.url

    def assert_near(self, found, expected):
        self.assertEqual([len(row) for row in found], [len(row) for row in expected])
        worst = max(abs(a - b) for one, other in zip(found, expected) for a, b in zip(one, other))
        self.assertLess(worst, TOLERANCE)


class ChatServed(Served):
    """The same with a language model beside one that embeds."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        model = Path(folder.name, CHATTER)
        chat_model.write(model)
        cls.server = Server(cls.environment, cls.settings, models=(model, FIXTURES / EMBEDDER))
        cls.addClassCleanup(cls.server.stop)
        cls.url = cls.server.url


class AsyncServed(Served, unittest.IsolatedAsyncioTestCase):
    """The same for tests that are coroutines."""

    async def asyncSetUp(self):
        # The debug mode of such tests tells of every task that is slow.
        asyncio.get_running_loop().set_debug(False)


class Server:
    def __init__(self, environment=(), settings="", models=tuple(FIXTURES / name for name in (EMBEDDER, RANKER, CLASSIFIER))):
        self.home = tempfile.TemporaryDirectory()
        Path(self.home.name, "magray.toml").write_text(settings)
        models = [word for model in models for word in ("--model", str(model))]
        self.process = subprocess.Popen(
            [BINARY, "--config", "magray.toml", "serve", "--port", "0", *COMPUTING, *models],
            cwd=self.home.name,
            env=bare_environment(self.home.name) | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("listening"):
                break
        else:
            self.stop()
            raise AssertionError(f"the server ended: {''.join(said)}")
        self.url = next(word for word in said[-1].split() if word.startswith("http"))
        # Somebody must read on, or the server would wait for room in the pipe.
        self.reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        self.reader.start()

    def stop(self):
        self.process.kill()
        self.process.wait()
        if hasattr(self, "reader"):
            self.reader.join()
        self.process.stderr.close()
        self.home.cleanup()

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return reply.read().decode()

    def post(self, path, body):
        return self.send("POST", path, body)

    def send(self, method, path, body):
        request = urllib.request.Request(self.url + path, data=json.dumps(body).encode(), method=method)
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)


def bare_environment(home):
    """An environment without the user's settings, in which nothing is fetched."""
    return {"HOME": home, "PATH": os.environ.get("PATH", ""), "HF_ENDPOINT": "http://127.0.0.1:1"}


def embedded(texts, prompt=None):
    """The vectors that `magray embed` gives."""
    prompts = ["--prompt", prompt] if prompt else []
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [BINARY, "embed", "--quiet", "--json", "--jsonl", *COMPUTING, *prompts, "--model", str(FIXTURES / EMBEDDER), "-"],
            input="".join(json.dumps(text) + "\n" for text in texts),
            capture_output=True,
            text=True,
            env=bare_environment(home),
            cwd=home,
        )
    if done.returncode:
        raise AssertionError(f"magray embed failed: {done.stderr}")
    return [json.loads(line)["embedding"] for line in done.stdout.splitlines()]


def ranked(server, texts=TEXTS):
    """The places of texts, the best for the query first, and their scores, as the server tells them without a client."""
    ranks = server.post("/rerank", {"query": QUERY, "texts": texts})
    return [rank["index"] for rank in ranks], [rank["score"] for rank in ranks]
