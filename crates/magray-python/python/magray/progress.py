"""A bar on stderr while texts are computed: tqdm's where it is installed. Writes nothing to stdout."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """So many of so many texts."""

    def __init__(self, total: int, name: str) -> None:
        self.total, self.name, self.done, self.began = total, name, 0, time.monotonic()
        self.bar: Any = None
        try:
            from tqdm.auto import tqdm
        except ImportError:
            return
        self.bar = tqdm(total=total, desc=name, unit="text")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.done:
            print(file=sys.stderr)

    def show(self, done: int) -> None:
        """So many are done."""
        if done == self.done:
            return
        if self.bar is not None:
            self.bar.update(done - self.done)
        else:
            speed = done / max(time.monotonic() - self.began, 1e-9)
            print(f"\r{self.name}: {done}/{self.total}, {speed:.0f} texts/s", end="", file=sys.stderr, flush=True)
        self.done = done
