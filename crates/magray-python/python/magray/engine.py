"""An engine in this process: one model on the CPU, or on GPUs through worker processes. Shared by threads and event loops.

After a fork the child's first call starts an engine of its own; pickled, it travels as its settings.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from magray import places
from magray._magray import Engine as Native
from magray._magray import Pending
from magray.waiting import Rows, waited

Floats = NDArray[np.float32]

_ALL: weakref.WeakSet[Engine] = weakref.WeakSet()


class Engine:
    """A model that computes; `close` or the end of the process ends it.

    `device`: "auto" (a GPU where there is one that is faster, else the CPU), "cpu", "cuda", "cuda:1". `precision`: "auto", "f32",
    "bf16", "int8". `backend`: "auto", "native", "onnx". `faults` and `simulated_gpus` are for tests, as those of `magray serve`.
    """

    def __init__(
        self,
        model: str = places.DEFAULT_MODEL,
        *,
        device: str = "auto",
        threads: int | None = None,
        precision: str = "auto",
        backend: str = "auto",
        pull: bool = True,
        faults: str = "",
        simulated_gpus: int = 0,
    ) -> None:
        self.model, self.device, self.pull = model, device, pull
        self._wanted: dict[str, Any] = {
            "threads": threads,
            "precision": precision,
            "backend": backend,
            "faults": faults,
            "simulated_gpus": simulated_gpus,
        }
        self._begin()
        self.native()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._native: Native | None = None
        self._pid = os.getpid()
        self._known: dict[str, Any] | None = None
        self._is_closed = False
        _ALL.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "device": self.device, "pull": self.pull, "_wanted": self._wanted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def native(self) -> Native:
        """The engine of this process."""
        native = self._native
        if native is not None and self._pid == os.getpid():
            return native
        with self._lock:
            if self._native is None or self._pid != os.getpid():
                if self._is_closed:
                    raise ValueError("this engine was closed")
                self._native, self._pid = self._start(), os.getpid()
            return self._native

    def _start(self) -> Native:
        wants_gpu = self.device != "cpu" or self._wanted["simulated_gpus"]
        place = {"name": self.model, "path": places.find(self.model, self.pull), "device": self.device}
        worker = {"worker": places.program() if wants_gpu else None, "cache": places.cache_folder()}
        return Native(place | worker | self._wanted)

    @property
    def known(self) -> dict[str, Any]:
        """What the model is: `does`, `dimensions`, `max_tokens`, `prompts`, `default_prompt`, `labels`."""
        if self._known is None:
            found: dict[str, Any] = json.loads(self.native().model())
            self._known = found
        return self._known

    def status(self) -> dict[str, Any]:
        """The devices and the queue."""
        found: dict[str, Any] = json.loads(self.native().status())
        return found

    def embed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        portion: int = 64,
        dimensions: int | None = None,
        normalize: bool = False,
        bar: str | None = None,
    ) -> Floats:
        """A row a text. `prompt` is the name of one of the model's; `dimensions`: only the first so many numbers of a row."""
        if not texts:
            return np.empty((0, self._columns(dimensions)), np.float32)
        return rows(waited(self._embed(texts, prompt, portion, dimensions, normalize), len(texts), bar))

    async def aembed(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        portion: int = 64,
        dimensions: int | None = None,
        normalize: bool = False,
    ) -> Floats:
        """As `embed`, awaited; a task that is cancelled cancels the work."""
        if not texts:
            return np.empty((0, self._columns(dimensions)), np.float32)
        return rows(await _finished(self._embed(texts, prompt, portion, dimensions, normalize)))

    def embed_tokens(self, texts: Sequence[str], *, prompt: str | None = None) -> list[Floats]:
        """By text a row for each of its tokens, special ones included."""
        if not texts:
            return []
        pending = self.native().embed(list(texts), prompt, 64, None, False, True)
        numbers, counts = waited(pending, len(texts), None)
        return np.split(np.asarray(numbers), np.cumsum(counts)[:-1])

    def score(self, pairs: Sequence[tuple[str, str]], *, portion: int = 64, bar: str | None = None) -> Floats:
        """What a classifier says of pairs of texts, before any function: a row a pair, a column a label."""
        if not pairs:
            return np.empty((0, len(self.known.get("labels", []))), np.float32)
        return rows(waited(self.native().score(list(pairs), portion), len(pairs), bar))

    async def ascore(self, pairs: Sequence[tuple[str, str]], *, portion: int = 64) -> Floats:
        """As `score`, awaited."""
        if not pairs:
            return np.empty((0, len(self.known.get("labels", []))), np.float32)
        return rows(await _finished(self.native().score(list(pairs), portion)))

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of texts, special ones included."""
        return self.native().tokens(list(texts))

    def close(self) -> None:
        """Ends it, when the work that it has is done."""
        with self._lock:
            native, self._native, self._is_closed = self._native, None, True
        if native is not None and self._pid == os.getpid():
            native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _embed(
        self, texts: Sequence[str], prompt: str | None, portion: int, dimensions: int | None, normalize: bool
    ) -> Pending:
        if dimensions is not None and dimensions < 1:
            raise ValueError(f"{dimensions} numbers of a row are to be kept: at least one")
        return self.native().embed(list(texts), prompt, portion, dimensions, normalize, False)

    def _columns(self, dimensions: int | None) -> int:
        every: int = self.known["dimensions"]
        return every if dimensions is None else min(dimensions, every)


def rows(found: Rows) -> Floats:
    """The numbers as an array that has them where they are."""
    return np.asarray(found[0])


def _forget_parents() -> None:
    # A thread of the parent may have held a lock; none of them is here.
    for engine in list(_ALL):
        engine._lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_parents)


async def _finished(pending: Pending) -> Rows:
    # asyncio takes longer to import than this package: it is loaded when something is awaited.
    from magray.awaiting import finished

    return await finished(pending)
