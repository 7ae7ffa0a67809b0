"""Waits for native work from an event loop, without a thread. Computes nothing, and is loaded by what is awaited: asyncio takes longer to
import than the package."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable
from typing import TypeVar

from magray._magray import Pending, Wakeups
from magray.waiting import Rows

T = TypeVar("T")


class LoopWaker:
    """What of native work an event loop waits for, by keys."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.wakeups = Wakeups()
        self.waiting: dict[int, asyncio.Event] = {}
        self.keys = itertools.count()
        loop.add_reader(self.wakeups.fileno(), self._tell)

    def _tell(self) -> None:
        for key in self.wakeups.drain():
            event = self.waiting.get(key)
            if event is not None:
                event.set()

    async def until(self, poll: Callable[[Wakeups, int], T | None]) -> T:
        """Polls until there is a result."""
        key, event = next(self.keys), asyncio.Event()
        self.waiting[key] = event
        try:
            while True:
                found = poll(self.wakeups, key)
                if found is not None:
                    return found
                await event.wait()
                event.clear()
        finally:
            del self.waiting[key]


_WAKERS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = weakref.WeakKeyDictionary()


def waker() -> LoopWaker:
    """That of the loop that runs."""
    loop = asyncio.get_running_loop()
    found = _WAKERS.get(loop)
    if found is None:
        found = _WAKERS[loop] = LoopWaker(loop)
    return found


async def finished(pending: Pending) -> Rows:
    """The rows; a task that is cancelled cancels the work."""
    try:
        return await waker().until(pending.poll)
    except asyncio.CancelledError:
        pending.cancel()
        raise
