"""The drain as a kubelet asks for it: one GET that is answered when the worker may be stopped.

The kubelet sends no credential. The path is one that nobody can guess, and is all that is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

from aiohttp import web

from cachefleet_worker.agent.duties.draining import Draining

log = logging.getLogger(__name__)


class Drains(Protocol):
    """What it is asked about."""

    @property
    def draining(self) -> Draining: ...
    def let_end(self, seconds: float) -> None: ...


class DrainRoute:
    """Asked first it begins the drain; asked again it waits for that one to end. The agent goes on living after it."""

    def __init__(
        self,
        path: str,
        worker: Drains,
        idle: Callable[[], Awaitable[None]],
        *,
        seconds: float,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._path = path
        self._worker = worker
        self._idle = idle
        self._seconds = seconds
        self._clock = clock
        self.asked = False
        """Whether it was ever asked: from then on somebody else ends this process."""

    def add_to(self, app: web.Application) -> None:
        """Nothing where there is no path."""
        if self._path:
            app.router.add_get(self._path, self._answer, allow_head=False)

    async def _answer(self, _request: web.Request) -> web.Response:
        begun = self._clock()
        if not self.asked or self._worker.draining.until is None:
            self.asked = True
            self._worker.let_end(self._seconds)
        await self._idle()
        seconds = round(self._clock() - begun, 3)
        log.info("drained, the engine may be stopped", extra={"seconds": seconds})
        return web.json_response({"drained": True, "seconds": seconds})
