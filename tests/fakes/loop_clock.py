"""A clock for tests of back-off, expiry and silence: while an event loop has nothing to do, its time passes quickly.

Sockets of this process, threads that the loop waits for and other programs keep their own pace. What is ready goes
first, and nothing is quick while a thread works for the loop; only waiting for timers is cut short. For code whose
timers are the loop's (``loop.time``, ``asyncio.sleep``, ``asyncio.timeout``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

PACE: Final = 50.0
"""Seconds of the loop that go by in one second of waiting."""
MILLISECOND: Final = 0.001


def clock() -> float:
    """The time of the running loop, which fakes go by."""
    return asyncio.get_running_loop().time()


@contextmanager
def hurried(loop: asyncio.AbstractEventLoop, *, pace: float = PACE) -> Iterator[None]:
    """Hurry ``loop``, which is asyncio's own; a higher ``pace`` leaves other threads and programs less time."""
    clock = _Clock(loop, pace)
    for name in ("time", "run_in_executor"):
        setattr(loop, name, getattr(clock, name))
    selector: Any = loop._selector  # type: ignore[attr-defined] # of every loop that selects
    before, selector.select = selector.select, clock.select
    try:
        yield
    finally:
        selector.select = before  # the time that was gained stays: timers are set by it


class _Clock:
    """In the place of some of a loop's methods."""

    def __init__(self, loop: Any, pace: float) -> None:
        self._pace = pace
        self._time: Callable[[], float] = loop.time
        self._run: Callable[..., asyncio.Future[Any]] = loop.run_in_executor
        self._select: Callable[[float | None], list[Any]] = loop._selector.select
        self._gained = 0.0
        self._busy = 0

    def time(self) -> float:
        return self._time() + self._gained

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        running = self._run(executor, function, *arguments)
        self._busy += 1
        running.add_done_callback(self._ended)
        return running

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout <= 0 or self._busy:
            return self._select(timeout)
        began = time.monotonic()
        ready = self._shortly(timeout / self._pace)
        waited = time.monotonic() - began
        self._gained += max(0.0, min(waited * self._pace, timeout) - waited)
        return ready

    def _shortly(self, seconds: float) -> list[Any]:
        """A selector waits for whole milliseconds, which at this pace are long."""
        if seconds >= MILLISECOND:
            return self._select(seconds)
        time.sleep(seconds)
        return self._select(0)

    def _ended(self, _running: asyncio.Future[Any]) -> None:
        self._busy -= 1
