"""Passes what each control plane tells of its requests in flight on to the others that share their load.

A control plane that has sent Share is told what others say from then on, and how many share is in every State. When
its connection ends the others are told that nothing of it is in flight. What comes within PASS_SECONDS goes on in one
frame; of a reader that is slow the oldest are dropped, which the next whole Load of each heals.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Raw

from cachefleet_core.report_frames import MAX_LOADS, PassedLoads, SharedLoad, encode

PASS_SECONDS: Final = 0.005
MAX_BYTES: Final = 1024 * 1024
"""Of what waits for one control plane."""


class Passing:
    """What waits to be passed on to one control plane; ``ready`` is called when it is due."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._loads: deque[bytes] = deque()
        self._bytes = 0
        self._due: asyncio.TimerHandle | None = None

    def put(self, load: bytes) -> None:
        """Add a Load as it came."""
        self._loads.append(load)
        self._bytes += len(load)
        while len(self._loads) > MAX_LOADS or self._bytes > MAX_BYTES:
            self._bytes -= len(self._loads.popleft())
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(PASS_SECONDS, self._ready)

    def take(self) -> list[bytes]:
        """All of it as a frame, where there is any."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if not self._loads:
            return []
        frame = encode(PassedLoads(tuple(map(Raw, self._loads))))
        self._loads.clear()
        self._bytes = 0
        return [frame]


class LoadRelay:
    """The control planes that share, each with what it is to be told of the others."""

    def __init__(self, changed: Callable[[], None]) -> None:
        """``changed`` is called when one more or one less shares."""
        self._changed = changed
        self._origins: dict[Passing, str] = {}

    def __len__(self) -> int:
        return len(self._origins)

    def join(self, passing: Passing, origin: str) -> None:
        """A control plane shares from now on."""
        if self._origins.get(passing) != origin:
            self._origins[passing] = origin
            self._changed()

    def tell(self, passing: Passing, load: bytes) -> None:
        """Pass a Load of one control plane on to the others."""
        for other in self._origins:
            if other is not passing:
                other.put(load)

    def leave(self, passing: Passing, ranks: Iterable[int]) -> None:
        """Its connection has ended: of these ranks nothing of it is in flight."""
        origin = self._origins.pop(passing, None)
        if origin is None:
            return
        for rank in ranks:
            self.tell(passing, encode(SharedLoad(rank=rank, origin=origin, whole=True)))
        self._changed()
