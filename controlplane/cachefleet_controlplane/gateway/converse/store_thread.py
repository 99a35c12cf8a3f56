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
from typing import Final, TypeVar

from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.store.store_errors import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_SECONDS: Final = 2.0
"""How long a turn waits for one call of the store, before its prompt and before its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreThreadBounds:
    """Timeouts in seconds, calls that may wait, and rows that are kept."""

    answer_seconds: float = ANSWER_SECONDS
    """Longest wait of a request for one call."""
    waiting: int = 256
    """Calls that may wait for the store."""
    retry_seconds: float = 1.0
    """How long the store is not called after a failure."""
    prune_seconds: float = 60.0
    conversations: int = 100_000
    responses: int = 20_000


class StoreThread:
    """Runs calls of the repository in one thread. Run ``run()`` as a task: it prunes what has expired."""

    def __init__(
        self,
        repository: SqlContinuations,
        *,
        metrics: ContinuationMetrics,
        bounds: StoreThreadBounds | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._repository = repository
        self._metrics = metrics
        self._bounds = bounds or StoreThreadBounds()
        self._clock = clock
        self._wall_clock = wall_clock
        self._opened = False
        self._waiting = 0
        self._left_alone_until = 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-continuation")
        self.problem = ""

    async def ask(self, operation: str, work: Callable[[SqlContinuations], T]) -> T:
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
        bounds, now = self._bounds, self._wall_clock()

        def once(repository: SqlContinuations) -> int:
            return repository.prune(now=now, max_responses=bounds.responses, max_conversations=bounds.conversations)

        try:
            while await self.ask("prune", once):
                pass
        except StoreError:
            return

    async def _ask(self, work: Callable[[SqlContinuations], T]) -> T:
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

    def _worked(self, work: Callable[[SqlContinuations], T]) -> T:
        try:
            if not self._opened:
                self._repository.open()
                self._opened = True
            return work(self._repository)
        except StoreError:
            self._opened = False
            raise
        except Exception as error:
            # The root of the thread: a turn is answered whatever is wrong with its record.
            logger.exception("the store of conversations failed unexpectedly")
            raise StoreError("unexpected", f"store: {type(error).__name__}") from error

    def _failed(self, operation: str, error: StoreError) -> None:
        self._metrics.store_failed(operation)
        if self.problem != str(error):
            logger.warning("conversations cannot be kept: %s", error, extra={"kind": error.kind})
        self.problem = str(error)
        if self._clock() >= self._left_alone_until:
            self._left_alone_until = self._clock() + self._bounds.retry_seconds
