"""Background tasks: one that is restarted when it ends, and groups that run to completion."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import NoReturn

logger = logging.getLogger(__name__)


async def restarting(
    name: str, work: Callable[[], Awaitable[None]], *, pause_seconds: float, failed: Callable[[str], None]
) -> NoReturn:
    """Run ``work`` until cancelled, again ``pause_seconds`` after each end; ``failed`` is called after errors."""
    while True:
        try:
            await work()
        except Exception:  # a task's root: nobody else would hear of it
            logger.exception("task %s failed and is started again", name, extra={"task": name})
            failed(name)
        await asyncio.sleep(pause_seconds)


class BackgroundTasks:
    """Tasks that run to completion beside their caller; ``failed`` is called after each that ends by an error."""

    def __init__(self, name: str, *, failed: Callable[[], None]) -> None:
        self._name = name
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` as a task; return at once."""
        task = asyncio.create_task(work, name=self._name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def settled(self) -> None:
        """Wait until no task is left, those started meanwhile included."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def cancel(self) -> None:
        """Cancel all tasks without waiting for their end."""
        for task in self._tasks:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed unexpectedly", self._name, exc_info=error)
            self._failed()
