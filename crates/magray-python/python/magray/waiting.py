"""Waits for native work from a thread. Computes nothing."""

from __future__ import annotations

import atexit
import os

from magray._magray import Numbers, Pending, after_fork, close

Rows = tuple[Numbers, list[int]]

atexit.register(close)
os.register_at_fork(after_in_child=after_fork)


def waited(pending: Pending, total: int, bar: str | None) -> Rows:
    """The rows, with a bar of this name while they come."""
    if bar is None:
        found = pending.wait()
    else:
        from magray.progress import Progress

        with Progress(total, bar) as progress:
            while (found := pending.wait(0.1)) is None:
                progress.show(pending.done)
            progress.show(total)
    assert found is not None, "a wait without an end has a result"
    return found
