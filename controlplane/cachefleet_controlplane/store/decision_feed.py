"""Decision records as they are made, to viewers that each have a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.store.decision_filter import DecisionFilter
from cachefleet_controlplane.store.decision_records import DecisionRecord

MAX_VIEWERS: Final = 32
QUEUE: Final = 256
"""Records that wait for one viewer; beyond that the oldest are dropped, and it is told how many."""


@dataclass(slots=True)
class Published:
    """A record, and what viewers are shown of it: whoever shows it first makes that for all."""

    record: DecisionRecord
    shown: bytes = b""


class TooManyViewersError(Exception):
    """MAX_VIEWERS are looking already."""


class Viewer:
    """One viewer's queue. Of records that match ``wanted``, those beyond QUEUE are dropped and counted."""

    def __init__(self, wanted: DecisionFilter) -> None:
        self._wanted = wanted
        self._waiting: deque[Published] = deque()
        self._changed = asyncio.Event()
        self._dropped = 0
        self.ended = False
        """No more records come."""

    def offer(self, published: Published) -> None:
        """Queue a record if it matches. Never waits."""
        if not self._wanted.matches(published.record):
            return
        self._waiting.append(published)
        if len(self._waiting) > QUEUE:
            self._waiting.popleft()
            self._dropped += 1
        self._changed.set()

    def end(self) -> None:
        """No more records come: what waits is still taken."""
        self.ended = True
        self._changed.set()

    async def take(self, *, seconds: float) -> tuple[list[Published], int]:
        """What has come and how many were dropped before it; nothing where nothing came for so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return [], 0
        taken, dropped = list(self._waiting), self._dropped
        self._waiting.clear()
        self._dropped = 0
        if not self.ended:
            self._changed.clear()
        return taken, dropped


class DecisionFeed:
    """All viewers of one replica."""

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._viewers)

    def publish(self, record: DecisionRecord) -> None:
        """Offer a record to every viewer. Never waits, never fails."""
        published = Published(record)
        for viewer in self._viewers:
            viewer.offer(published)

    def join(self, wanted: DecisionFilter) -> Viewer:
        """A new viewer, of what is published from now on; let it ``leave``. TooManyViewersError."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise TooManyViewersError
        viewer = Viewer(wanted)
        self._viewers.add(viewer)
        if self._ended:
            viewer.end()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """This viewer looks no more."""
        self._viewers.discard(viewer)

    def end(self) -> None:
        """The replica ends: so do all viewers, once they have taken what waits for them."""
        self._ended = True
        for viewer in self._viewers:
            viewer.end()
