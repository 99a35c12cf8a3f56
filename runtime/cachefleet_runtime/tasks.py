"""A task that never should end, and is started again where it does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

logger = logging.getLogger(__name__)


async def restarting(
    name: str, work: Callable[[], Awaitable[None]], *, pause_seconds: float, failed: Callable[[str], None]
) -> NoReturn:
    """Run ``work`` until cancelled, again ``pause_seconds`` after each end; ``failed`` is told of ends by an error."""
    while True:
        try:
            await work()
        except Exception:  # a task's root: nobody else would hear of it
            logger.exception("task %s failed and is started again", name, extra={"task": name})
            failed(name)
        await asyncio.sleep(pause_seconds)
