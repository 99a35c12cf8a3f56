"""States that native code keeps for Python: which sessions are to deal with theirs, and when."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cachefleet_native import ReportTaps

from cachefleet_controlplane.report_server.connection import ReportSession

AT_ONCE: Final = 32
"""Sessions that deal with their States before the event loop gets a turn: some 50 us each."""


class KeptStates:
    """Has sessions deal with what their connections keep; listens while there is any session. One event loop's."""

    def __init__(self, taps: ReportTaps) -> None:
        self._taps = taps
        self._sessions: dict[int, ReportSession] = {}
        self._waiting: deque[int] = deque()

    @contextmanager
    def followed(self, number: int, session: ReportSession) -> Iterator[None]:
        """Within it the session deals with the States of the connection of this number."""
        loop = asyncio.get_running_loop()
        if not self._sessions:
            loop.add_reader(self._taps.fileno(), self._hear)
        self._sessions[number] = session
        try:
            yield
        finally:
            del self._sessions[number]
            if not self._sessions:
                loop.remove_reader(self._taps.fileno())

    def _hear(self) -> None:
        is_busy = bool(self._waiting)
        self._waiting.extend(self._taps.waiting())
        if not is_busy:
            self._deal()

    def _deal(self) -> None:
        for _ in range(min(AT_ONCE, len(self._waiting))):
            if session := self._sessions.get(self._waiting.popleft()):
                session.take_states()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._deal)
