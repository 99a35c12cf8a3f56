"""Runs kopf in a thread with an event loop of its own.

On the main loop it would take over the signal handlers and, when it ends, cancel every task that it did not start.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

import kopf

from cachefleet_operator.watching.handlers import Enqueue, registry, settings


class WatchError(Exception):
    """The watches did not stop in time: this process cannot go on."""


class WatchEndedError(Exception):
    """The watches failed or ended, for instance because the CRD was deleted; new ones may be started."""


class Watch:
    """The watches of one term of leadership; ``run`` once."""

    def __init__(self, enqueue: Enqueue, namespaces: Sequence[str], *, stop_seconds: float) -> None:
        self._enqueue = enqueue
        self._namespaces = namespaces
        self._stop_seconds = stop_seconds
        self._asked = threading.Event()
        self._stop: asyncio.Event | None = None
        self._inner: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self.ready = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled, then stop within ``stop_seconds``. WatchEndedError where they fail or end, WatchError
        where they do not stop.
        """
        outer = asyncio.get_running_loop()
        ended: asyncio.Future[None] = outer.create_future()
        ended.add_done_callback(asyncio.Future.exception)  # retrieved, also where this task is cancelled first
        thread = threading.Thread(target=self._thread, args=(outer, ended), name="watches", daemon=True)
        thread.start()
        try:
            await asyncio.shield(ended)
        finally:
            self._ask()
            await asyncio.wait({ended}, timeout=self._stop_seconds)
            if not ended.done():
                raise WatchError(f"the watches did not stop within {self._stop_seconds} s")
        raise WatchEndedError("the watches ended by themselves")

    def _thread(self, outer: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._operate(outer))
        except BaseException as raised:  # noqa: BLE001  # a thread's root: handed over to the loop that waits for it
            error = raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            outer.call_soon_threadsafe(_finish, ended, error)

    async def _operate(self, outer: asyncio.AbstractEventLoop) -> None:
        stop = asyncio.Event()
        with self._lock:
            self._stop, self._inner = stop, asyncio.get_running_loop()
        if self._asked.is_set():
            return
        await kopf.operator(
            registry=registry(lambda key: _hand_over(outer, self._enqueue, key)),
            settings=settings(),
            standalone=True,
            identity="cachefleet-operator",  # type: ignore[arg-type]  # else it asks for a user name; a pod's has none
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=stop,
            ready_flag=self.ready,
        )

    def _ask(self) -> None:
        self._asked.set()
        with self._lock:
            if self._stop is not None and self._inner is not None and not self._inner.is_closed():
                self._inner.call_soon_threadsafe(self._stop.set)


def _hand_over(outer: asyncio.AbstractEventLoop, enqueue: Enqueue, key: str) -> None:
    if not outer.is_closed():
        outer.call_soon_threadsafe(enqueue, key)


def _finish(ended: asyncio.Future[None], error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(WatchEndedError(f"the watches failed: {type(error).__name__}: {error}"))
