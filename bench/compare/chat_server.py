"""A magray server with a language model and an embedder, and what is asked of it. Uses nothing but the standard library."""

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EMBED_LOAD = Path(__file__).resolve().parent / "embed_load.py"
START_MAX_S = 180
REST_S = 2


@dataclass
class Answer:
    """The tokens of a stream, and how they came."""

    texts: list = field(default_factory=list)
    times: list = field(default_factory=list)
    ended: bool = False
    # Tokens that it had when the worker was struck, and the longest time without one after that.
    struck_at: int = 0
    pause: float = 0.0


class Server:
    """Runs while it is in use."""

    def __init__(self, arguments, model, folder, is_real, settings=""):
        self.magray, self.model, self.folder, self.is_real = arguments.magray.resolve(), model, folder, is_real
        self.embedder, self.settings = arguments.embedder, settings

    def __enter__(self):
        self.folder.mkdir(mode=0o700)
        control = self.folder / "control"
        control.mkdir(mode=0o700)
        self.environment = {**os.environ, "MAGRAY_CONTROL_FOLDER": str(control), "MAGRAY_WORKER_KEPT": str(REST_S), "MAGRAY_LOG": "warn"}
        if self.settings:
            file = self.folder / "magray.toml"
            file.write_text(self.settings)
            self.environment["MAGRAY_CONFIG"] = str(file)
        device = ["--device", "cuda"] if self.is_real else ["--device", "require-gpu", "--simulated-gpus", "1"]
        command = [self.magray, "serve", "-m", self.model, "-m", self.embedder, "--port", "0", "--preload", "--text-cache", "0", *device]
        self.log = open(self.folder / "log", "w+")
        self.process = subprocess.Popen(list(map(str, command)), env=self.environment, stdout=self.log, stderr=self.log)
        self.port = self._port()
        self.gpu()
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def _port(self):
        until = time.monotonic() + START_MAX_S
        while time.monotonic() < until and self.process.poll() is None:
            said = (self.folder / "log").read_text()
            if "listening on http://127.0.0.1:" in said:
                return int(said.split("listening on http://127.0.0.1:")[1].split()[0])
            time.sleep(0.05)
        raise RuntimeError(f"the server did not start: {(self.folder / 'log').read_text()}")

    def command(self, *words):
        done = subprocess.run([str(self.magray), *words], env=self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"magray {' '.join(words)}: {done.stderr}")
        return done.stdout

    def gpu(self):
        """What is told of the GPU."""
        engine = json.loads(self.command("gpu", "status", "--json"))["engines"][0]
        return next(device for device in engine["devices"] if device["is_gpu"])

    def wait_for_rest(self):
        until = time.monotonic() + 60
        while self.gpu()["worker_pid"] is not None:
            if time.monotonic() > until:
                raise RuntimeError("the worker did not end")
            time.sleep(0.2)

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{path}: {reply.status} {reply.read()[:500]!r}")
        return connection, reply

    def ask(self, path, body):
        connection, reply = self.post(path, body)
        value = json.loads(reply.read())
        connection.close()
        return value

    def read(self, answer, number, tokens, stop=None):
        """Reads a stream. Tokens are drawn by a seed, so that a wrong one is seen."""
        ids = [(at * 5 + number * 17) % 256 for at in range(64)]
        body = {"model": self.model.name, "prompt": ids, "max_tokens": tokens, "temperature": 1, "seed": number, "stream": True,
                "logprobs": 0, "logit_bias": {"256": -1000}}
        connection, reply = self.post("/v1/completions", body)
        for line in reply:
            if stop is not None and stop.is_set():
                break
            if line.startswith(b"data: [DONE]"):
                answer.ended = True
            elif line.startswith(b"data: "):
                choice = json.loads(line[6:])["choices"][0]
                # Text is held back where characters are not complete: tokens come with their log probabilities.
                for token in (choice.get("logprobs") or {}).get("tokens", []):
                    answer.texts.append(token)
                    answer.times.append(time.perf_counter())
        connection.close()

    def answers(self, streams, tokens, strike=None):
        """All tokens of streams side by side. A signal strikes the worker when each has some."""
        answers = [Answer() for _ in range(streams)]
        threads = [threading.Thread(target=self.read, args=(answer, number, tokens)) for number, answer in enumerate(answers)]
        pid = self.gpu()["worker_pid"] if strike else None
        for thread in threads:
            thread.start()
        if strike:
            while any(len(answer.texts) < tokens // 8 for answer in answers) and any(thread.is_alive() for thread in threads):
                time.sleep(0.001)
            os.kill(pid, getattr(signal, f"SIG{strike}"))
            struck = time.perf_counter()
            for answer in answers:
                answer.struck_at = len(answer.texts)
        for thread in threads:
            thread.join()
        for answer in answers if strike else []:
            after = [struck, *(at for at in answer.times if at > struck)]
            answer.pause = max((b - a for a, b in zip(after, after[1:])), default=0.0)
        return answers

    def stream_for(self, streams, seconds):
        """Gaps between tokens of streams that run this long."""
        stop, answers = threading.Event(), [Answer() for _ in range(streams)]

        def go_on(answer, number):
            while not stop.is_set():
                one = Answer()
                self.read(one, number, 1000, stop)
                answer.times.append(one.times)

        threads = [threading.Thread(target=go_on, args=pair) for pair in zip(answers, range(streams))]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        stop.set()
        for thread in threads:
            thread.join()
        return [b - a for answer in answers for times in answer.times for a, b in zip(times, times[1:])]

    def embed_for(self, seconds, per_second):
        """Embeddings a second: this many, or as many as four callers get."""
        command = [sys.executable, EMBED_LOAD, self.port, self.embedder.name, seconds, per_second or 0]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=seconds + 60)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return float(done.stdout)

    def constrained(self, count, schema):
        """Answers of a schema, of 16 callers."""
        answers, left = [], iter(range(count))
        lock = threading.Lock()

        def call():
            while True:
                with lock:
                    number = next(left, None)
                if number is None:
                    return
                form = {"type": "json_schema", "json_schema": {"name": "one", "schema": schema}}
                body = {"model": self.model.name, "prompt": f"a person, number {number}: ", "max_tokens": 600, "temperature": 1,
                        "seed": number, "response_format": form}
                text = self.ask("/v1/completions", body)["choices"][0]["text"]
                with lock:
                    answers.append(text)

        threads = [threading.Thread(target=call) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers


@contextmanager
def side_by_side(work):
    """Does something on another thread meanwhile."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def percentile(values, share):
    """Of values in any order; 0 of none."""
    values = sorted(values)
    return values[round(share * (len(values) - 1))] if values else 0.0
