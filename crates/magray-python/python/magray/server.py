"""A running server in place of an engine of this process: its address, its key, what is tried again. Follows no redirect."""

from __future__ import annotations

import base64
import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from magray._magray import Busy, MagrayError

Floats = NDArray[np.float32]

ANSWER_S_MAX = 600
ATTEMPTS_MAX = 12
PAUSE_S_MAX = 60.0
# A server takes bodies of some megabytes; a text of this size goes alone.
PORTION_BYTES = 1 << 20
AGAIN = (408, 429, 502, 503, 504)


def of_environment(server: str | None) -> str | None:
    """The server that was named, or that of MAGRAY_SERVER; "" names none."""
    return os.environ.get("MAGRAY_SERVER") or None if server is None else server or None


class Server:
    """The APIs of a server at `url`; `key` is that of MAGRAY_API_KEY where none is named."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{url}' is no address of a server: http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self.path = parts.path.rstrip("/").removesuffix("/v1")
        self.key = key or os.environ.get("MAGRAY_API_KEY")
        self._connections = threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "path": self.path, "key": self.key}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connections = threading.local()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of an answer, tried as often and as long as the server asks for."""
        answer = self._send(method, path, body)
        return json.loads(answer.read())

    def lines(self, path: str, body: object) -> Iterator[dict[str, Any]]:
        """The events of a stream, as they come."""
        answer = self._send("POST", path, body)
        try:
            for line in answer:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield json.loads(data)
        finally:
            # What is left of it is not wanted: the server ends what it generates.
            self._leave()

    def embed(self, texts: Sequence[str], model: str | None, prompt: str | None, portion: int) -> Floats:
        """A row a text."""
        found: list[Floats] = []
        for some in portions(texts, portion):
            body: dict[str, Any] = {"input": some, "encoding_format": "base64"}
            body |= {name: value for name, value in (("model", model), ("prompt_name", prompt)) if value}
            data = sorted(self.ask("POST", "/v1/embeddings", body)["data"], key=lambda one: int(one["index"]))
            found += [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data]
        if len(found) != len(texts):
            raise MagrayError(f"{self.url} gave {len(found)} vectors for {len(texts)} texts")
        return np.array(found, np.float32)

    def rerank(self, query: str, texts: Sequence[str], model: str | None) -> Floats:
        """What a reranker says of texts, before any function."""
        scores = np.zeros(len(texts), np.float32)
        start = 0
        for some in portions(texts, 64):
            body: dict[str, Any] = {"query": query, "texts": some, "raw_scores": True}
            body |= {"model": model} if model else {}
            for one in self.ask("POST", "/rerank", body):
                scores[start + one["index"]] = one["score"]
            start += len(some)
        return scores

    def model(self, name: str | None, does: str) -> dict[str, Any]:
        """What the server says of a model: the one of this name, or the first that does this."""
        for model in self.ask("GET", "/v1/models")["data"]:
            if name in (model["id"], None) and model.get("does", does) == does:
                found: dict[str, Any] = model
                return found
        raise MagrayError(f"{self.url} has no model {name or ''} that does '{does}'")

    def _send(self, method: str, path: str, body: object) -> http.client.HTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if sent is not None else {}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        has_answered = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            pause = min(0.2 * 2 ** (attempt - 1), PAUSE_S_MAX)
            try:
                connection = self._connection()
                connection.request(method, self.path + path, sent, headers)
                answer = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                is_kept = self._leave()
                # A server that never answered is reported at once; a connection that was kept may have been closed.
                if attempt == ATTEMPTS_MAX or not (has_answered or is_kept):
                    raise MagrayError(f"no answer from {self.url}: {error}") from error
                time.sleep(0 if is_kept and not has_answered else pause)
                continue
            has_answered = self._connections.is_used = True
            if answer.status < 300:
                return answer
            message = _message(answer.read())
            if answer.status not in AGAIN or attempt == ATTEMPTS_MAX:
                told = f"{self.url} refused it ({answer.status}): {message}"
                if answer.status in AGAIN:
                    raise Busy(told)
                raise ValueError(told) if answer.status in (400, 404, 409, 413, 422) else MagrayError(told)
            asked = answer.headers.get("retry-after-ms")
            time.sleep(min(float(asked) / 1000 if asked else pause, PAUSE_S_MAX))
        raise MagrayError(f"no answer from {self.url}")

    def _connection(self) -> http.client.HTTPConnection:
        # Of this thread, and of this process: a fork's child must not share it.
        kept = getattr(self._connections, "kept", None)
        if kept is not None and kept[0] == os.getpid():
            connection: http.client.HTTPConnection = kept[1]
            return connection
        kind = http.client.HTTPSConnection if self.url.startswith("https://") else http.client.HTTPConnection
        connection = kind(self.url.split("://", 1)[1], timeout=ANSWER_S_MAX)
        self._connections.kept = (os.getpid(), connection)
        self._connections.is_used = False
        return connection

    def _leave(self) -> bool:
        """Closes the connection; whether it had been kept from an earlier request."""
        kept = self._connections.__dict__.pop("kept", None)
        if kept is None or kept[0] != os.getpid():
            return False
        kept[1].close()
        return bool(self._connections.__dict__.pop("is_used", False))


def portions(texts: Sequence[str], count: int) -> Iterator[list[str]]:
    """Texts in portions that a server takes, in their order."""
    some: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if some and (len(some) >= count or size + length > PORTION_BYTES):
            yield some
            some, size = [], 0
        some.append(text)
        size += length
    if some:
        yield some


def path_of(name: str, rest: str = "") -> str:
    """The path of a collection, its name escaped."""
    return f"/collections/{quote(name, safe='')}{rest}"


def _message(body: bytes) -> str:
    """What the server says, in any of the shapes that errors have."""
    try:
        found = json.loads(body)
        for at in (("error", "message"), ("error",), ("status", "error")):
            told: Any = found
            for name in at:
                told = told.get(name) if isinstance(told, dict) else None
            if isinstance(told, str):
                return told
    except ValueError:
        pass
    return body[:200].decode(errors="replace")
