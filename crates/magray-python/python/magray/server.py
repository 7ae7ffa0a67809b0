"""A running server in place of an engine of this process: its address, its key, what is tried again. Follows no redirect."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
from numpy.typing import NDArray

from magray._magray import Busy, Cancelled, MagrayError

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


class Connection:
    """A connection of one thread to a server. Any other thread may `interrupt` it: what waits there then ends with an error."""

    def __init__(self, url: str) -> None:
        kind = http.client.HTTPSConnection if url.startswith("https://") else http.client.HTTPConnection
        self._http = kind(url.split("://", 1)[1], timeout=ANSWER_S_MAX)
        self._socket: socket.socket | None = None
        self._is_interrupted = threading.Event()
        self._answer: http.client.HTTPResponse | None = None
        self.process = os.getpid()

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The head of an answer."""
        if self._http.sock is None:
            self._http.connect()
        # An answer after which the server closes takes the socket away from the connection.
        self._socket = self._http.sock
        self.pause(0)
        self._http.request(method, path, body, headers)
        self._answer = self._http.getresponse()
        return self._answer

    def pause(self, seconds: float) -> None:
        """Waits before the next request."""
        if self._is_interrupted.wait(seconds):
            raise Cancelled("the answer is not wanted any more")

    def close(self) -> bool:
        """Closes it until the next request; whether one was answered before."""
        answer, self._answer, self._socket = self._answer, None, None
        if answer is not None:
            answer.close()
        self._http.close()
        return answer is not None

    def interrupt(self) -> None:
        """Ends what waits in another thread, and what would be asked there; that thread closes the connection."""
        self._is_interrupted.set()
        if (open_socket := self._socket) is not None:
            # The method of a TLS socket would take away the state that the other thread reads with.
            with suppress(OSError):
                socket.socket.shutdown(open_socket, socket.SHUT_RDWR)


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
        connection = self._kept()
        answer = self._send(connection, method, path, body)
        try:
            return json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise MagrayError(f"{self.url} ended its answer early: {error}") from error

    def connection(self) -> Connection:
        """A connection for one stream."""
        return Connection(self.url)

    def lines(self, path: str, body: object, connection: Connection | None = None) -> Generator[dict[str, Any], None, None]:
        """The events of a stream, as they come; one that ends before `[DONE]` is an error. No two streams share a connection, and that of
        a stream is closed with it, and the server ends what is not read."""
        connection = connection or self.connection()
        try:
            for line in self._send(connection, "POST", path, body):
                if not line.endswith(b"\n"):
                    break
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if event.get("error"):
                    raise MagrayError(f"{self.url} could not go on: {_message(data)}")
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise MagrayError(f"{self.url} ended a stream early: {error}") from error
        finally:
            connection.close()
        raise MagrayError(f"{self.url} ended a stream early")

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

    def _send(self, connection: Connection, method: str, path: str, body: object) -> http.client.HTTPResponse:
        sent = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"} if sent is not None else {}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
        has_answered = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            pause = min(0.2 * 2 ** (attempt - 1), PAUSE_S_MAX)
            try:
                answer = connection.request(method, self.path + path, sent, headers)
            except (OSError, http.client.HTTPException) as error:
                is_kept = connection.close()
                # A server that never answered is reported at once; a connection that was kept may have been closed.
                if attempt == ATTEMPTS_MAX or not (has_answered or is_kept):
                    raise MagrayError(f"no answer from {self.url}: {error}") from error
                connection.pause(0 if is_kept and not has_answered else pause)
                continue
            has_answered = True
            if answer.status < 300:
                return answer
            message = _message(answer.read())
            if answer.status not in AGAIN or attempt == ATTEMPTS_MAX:
                told = f"{self.url} refused it ({answer.status}): {message}"
                if answer.status in AGAIN:
                    raise Busy(told)
                raise ValueError(told) if answer.status in (400, 404, 409, 413, 422) else MagrayError(told)
            asked = answer.headers.get("retry-after-ms")
            connection.pause(min(float(asked) / 1000 if asked else pause, PAUSE_S_MAX))
        raise MagrayError(f"no answer from {self.url}")

    def _kept(self) -> Connection:
        # Of this thread, and of this process: a fork's child must not share it.
        kept: Connection | None = getattr(self._connections, "kept", None)
        if kept is None or kept.process != os.getpid():
            kept = self._connections.kept = self.connection()
        return kept


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
