"""Long work for a client, which ends when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

from fastapi import Request
from starlette.responses import Response

from cachefleet_controlplane.wire.http_exchange import CLIENT_GONE_STATUS

T = TypeVar("T")

LOOK_SECONDS: Final = 0.5
"""How often it is looked whether the client is still there."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """What ``work`` gives; where the client leaves before, it is cancelled, and an answer is given to nobody."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_SECONDS)
            if not task.done() and await request.is_disconnected():
                return Response(status_code=CLIENT_GONE_STATUS)
        return task.result()
    finally:
        if task.cancel():
            with suppress(asyncio.CancelledError):
                await task
