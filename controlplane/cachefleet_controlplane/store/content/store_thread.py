"""Runs store calls in a thread: bounded, timed out, with a circuit breaker.

The caller gets a result in time or a StoreError, which is counted, and decides what to do without one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from cachefleet_controlplane.store.store_errors import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_SECONDS: Final = 2.0
"""How long a turn waits for one call of the store, before its prompt and before its end."""


class Repository(Protocol):
    """What is called in the thread."""

    def open(self) -> None:
        """Open the database; called before all else, and again after a StoreError."""
        ...


R = TypeVar("R", bound=Repository)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreThreadBounds:
    """Timeouts in seconds, and calls that may wait."""

    answer_seconds: float = ANSWER_SECONDS
    """Longest wait of a request for one call."""
    waiting: int = 256
    """Calls that may wait for the store."""
    retry_seconds: float = 1.0
    """How long the store is not called after a failure."""
    prune_seconds: float = 60.0


class StoreThread(Generic[R]):
    """Runs calls of a repository in one thread. Run ``run()`` as a task: it prunes what has expired.

    ``what`` it keeps is named in logs; ``failed`` is called with the operation that failed; ``prune`` deletes some of
    what has expired or is too much, and returns how many rows.
    """

    def __init__(
        self,
        repository: R,
        what: str,
        *,
        failed: Callable[[str], None],
        prune: Callable[[R], int],
        bounds: StoreThreadBounds | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._what = what
        self._count_failure = failed
        self._prune = prune
        self._bounds = bounds or StoreThreadBounds()
        self._clock = clock
        self._opened = False
        self._waiting = 0
        self._left_alone_until = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"store-{what}")
        self.problem = ""

    async def ask(self, operation: str, work: Callable[[R], T]) -> T:
        """Return what ``work`` returns in the thread. StoreError; ``operation`` labels the metric."""
        try:
            return await self._ask(work)
        except StoreError as error:
            self._failed(operation, error)
            raise

    async def run(self) -> None:
        """Prune every ``prune_seconds`` until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._bounds.prune_seconds)
                await self.prune()
        except asyncio.CancelledError:
            self._thread.shutdown(wait=False)
            raise

    async def prune(self) -> None:
        """Delete rows that have expired or are too many; a failing store is tried again the next time."""
        try:
            while await self.ask("prune", self._prune):
                pass
        except StoreError:
            return

    async def _ask(self, work: Callable[[R], T]) -> T:
        if self._clock() < self._left_alone_until:
            raise StoreError("unavailable", self.problem or "the store failed a moment ago")
        if self._waiting >= self._bounds.waiting:
            raise StoreError("busy", "too much waits for the store")
        try:
            future = asyncio.get_running_loop().run_in_executor(self._thread, lambda: self._worked(work))
        except RuntimeError as error:  # the thread has ended
            raise StoreError("unavailable", "the store is closed") from error
        self._waiting += 1
        future.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(self._bounds.answer_seconds):
                found = await asyncio.shield(future)
        except TimeoutError as error:
            raise StoreError("slow", "the store did not answer in time") from error
        self.problem = ""
        return found

    def _ended(self, future: asyncio.Future[T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # the caller has got it, where it still waited

    def _worked(self, work: Callable[[R], T]) -> T:
        try:
            if not self._opened:
                self._repository.open()
                self._opened = True
            return work(self._repository)
        except StoreError:
            self._opened = False
            raise
        except Exception as error:
            # The root of the thread: a request is answered whatever is wrong with its record.
            logger.exception("the store of %s failed unexpectedly", self._what)
            raise StoreError("unexpected", f"store: {type(error).__name__}") from error

    def _failed(self, operation: str, error: StoreError) -> None:
        self._count_failure(operation)
        if self.problem != str(error):
            logger.warning("%s cannot be kept: %s", self._what, error, extra={"kind": error.kind})
        self.problem = str(error)
        if self._clock() >= self._left_alone_until:
            self._left_alone_until = self._clock() + self._bounds.retry_seconds
