"""Drains a worker: no new work, running requests finish, and the route answers when that is done."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from aiohttp import web

SILENT_SECONDS: Final = 30.0
"""An engine silent for so long counts as drained."""


@dataclass(slots=True)
class Draining:
    """State of a drain: deadline, and since when the engine has been idle; times in seconds. Pure."""

    settle_seconds: float
    """How long the engine must have been idle, seen at two polls after the drain began."""
    until: float | None = None
    """Deadline; None while there is no drain."""
    epoch: str | None = None
    """The engine process that is drained, "" for one not known yet; None where the worker is."""
    _since: float = 0.0
    _idle_since: float | None = None
    _idle_at: float = 0.0
    _silent_since: float | None = None

    def begin(self, now: float, seconds: float, *, epoch: str | None = None) -> bool:
        """Drain within ``seconds`` from now; returns whether this is a new drain. Called again, it sets a new deadline.

        With an ``epoch`` the drain is of that engine process only; once called without one, of the worker.
        """
        first = self.until is None
        if first:
            self._since = now
        if first or epoch is None:
            self.epoch = epoch
        self.until = now + seconds
        return first

    def left(self, now: float) -> float | None:
        """For how long requests under way may go on yet; None while there is no drain."""
        return None if self.until is None else max(0.0, self.until - now)

    def lives(self, epoch: str) -> bool:
        """An engine process starts; returns whether that cancels a drain of an earlier process."""
        if self.until is None or self.epoch is None or self.epoch == epoch:
            return False
        self.until = self.epoch = None
        return True

    def observed(self, now: float, *, idle: bool) -> None:
        """The engine reported at ``now`` whether any request runs or waits."""
        self._silent_since = None
        if not idle:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        self._idle_at = now

    def unanswered(self, now: float) -> None:
        """The engine did not answer a poll at ``now``: it no longer counts as idle."""
        self._idle_since = None
        if self._silent_since is None:
            self._silent_since = now

    def over(self, now: float, *, engine: bool) -> bool:
        """Whether the drain is over: engine gone, silent or idle for long enough, or time up."""
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
    """The worker's drain, as the route needs it."""

    @property
    def draining(self) -> Draining: ...
    def let_end(self, seconds: float) -> None: ...


class DrainRoute:
    """``GET`` on the drain path: the first request begins the drain, later ones wait for it to end.

    The agent keeps running afterwards.
    """

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
        """Whether it was ever called: from then on the kubelet ends this process."""

    def add_to(self, app: web.Application) -> None:
        """Register the route, where a path is configured."""
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
