"""Drains a worker: no new work, running requests end, and whoever asked is answered when it is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from aiohttp import web

SILENT_SECONDS: Final = 30.0
"""After how long without an answer nothing is expected to end any more."""


@dataclass(slots=True)
class Draining:
    """When a drain began, by when it must end, and since when the engine has been idle; times in seconds. Pure."""

    settle_seconds: float
    """How long the engine must have been idle, seen at two polls after the beginning."""
    until: float | None = None
    """When the time is up; None while nobody asked for a drain."""
    epoch: str | None = None
    """The life of the engine that alone is to end, "" for one not known yet; None where the worker is to go."""
    _since: float = 0.0
    _idle_since: float | None = None
    _idle_at: float = 0.0
    _silent_since: float | None = None

    def begin(self, now: float, seconds: float, *, epoch: str | None = None) -> bool:
        """End within ``seconds`` of now; whether this is the first that is heard of it. Asked again, it starts over.

        With an ``epoch`` it is about that life of the engine; asked once without one, it is about the worker.
        """
        first = self.until is None
        if first:
            self._since = now
        if first or epoch is None:
            self.epoch = epoch
        self.until = now + seconds
        return first

    def lives(self, epoch: str) -> bool:
        """A life of the engine begins; whether that ends a drain which was about an earlier one."""
        if self.until is None or self.epoch is None or self.epoch == epoch:
            return False
        self.until = self.epoch = None
        return True

    def observed(self, now: float, *, idle: bool) -> None:
        """The engine said at ``now`` whether anything runs or waits."""
        self._silent_since = None
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._idle_at = now

    def unanswered(self, now: float) -> None:
        """The engine was asked and did not say; what it said before may be true no more."""
        self._idle_since = None
        if self._silent_since is None:
            self._silent_since = now

    def over(self, now: float, *, engine: bool) -> bool:
        """Whether it has ended: the engine is gone or hangs, or has been idle for long enough since, or the time is
        up.
        """
        if self.until is None:
            return False
        if not engine or now >= self.until:
            return True
        if self._silent_since is not None and now - self._silent_since >= SILENT_SECONDS:
            return True
        if self._idle_since is None or self._idle_at <= self._since:
            return False
        return self._idle_at - max(self._idle_since, self._since) >= self.settle_seconds


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
