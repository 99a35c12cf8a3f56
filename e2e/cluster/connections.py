"""Waits until an event loop's connections are closed: one over TLS is gone only once its peer has said farewell.

A loop that ends before leaves its sockets to the garbage collector, whose warning fails whichever test runs then.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

FAREWELL_SECONDS: Final = 10.0


async def closed() -> None:
    """Wait until this loop has no connection. TimeoutError where one is still open after ``FAREWELL_SECONDS``."""
    loop: Any = asyncio.get_running_loop()
    async with asyncio.timeout(FAREWELL_SECONDS):
        while len(loop._selector.get_map()) > 1:  # noqa: ASYNC110  # one socket is the loop's own
            await asyncio.sleep(0.01)
    for _ in range(3):  # what nobody listens to any more is closed in the next turn
        await asyncio.sleep(0)
