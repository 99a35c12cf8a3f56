"""Limits log lines about agents' connections: one a minute for each address and event, with a count of the others.

An agent that is refused, or that no pool lists, connects again and again, and whole namespaces of them may.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

LINE_SECONDS: Final = 60.0
MAX_LINES: Final = 4096
"""Addresses and events remembered; the oldest are forgotten first."""


@dataclass(slots=True)
class _Line:
    at: float
    omitted: int = 0


class PeerLog:
    """Which lines to log; the caller logs them."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lines: OrderedDict[tuple[str, str], _Line] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lines)

    def omitted(self, address: str, event: str) -> int | None:
        """How many lines were omitted since the last one of this address and event; None: omit this one as well."""
        now, line = self._clock(), self._lines.get((address, event))
        if line is not None and now - line.at < LINE_SECONDS:
            line.omitted += 1
            return None
        self._lines.pop((address, event), None)
        self._lines[address, event] = _Line(now)
        if len(self._lines) > MAX_LINES:
            self._lines.popitem(last=False)
        return 0 if line is None else line.omitted
