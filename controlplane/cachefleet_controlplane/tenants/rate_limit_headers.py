"""The headers that tell a client what its tenant's limits leave: OpenAI's, and Anthropic's on its endpoints. Pure.

Seconds. OpenAI has durations as ``6m0s``, Anthropic moments as RFC 3339 has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from math import ceil
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.wire.headers import RATE_LIMIT_HEADERS, Header, rate_limit_header

_MINUTE: Final = 60
_HOUR: Final = 3600


class Room(Struct, frozen=True):
    """What a limit leaves, and the seconds until it is whole again."""

    limit: int
    remaining: int
    reset: float


class Rooms(Struct, frozen=True):
    """What is left of a tenant's requests and tokens; None where they are not limited. Of several limits of tokens the
    one that leaves fewest.
    """

    requests: Room | None = None
    tokens: Room | None = None

    def headers(self, *, anthropic: bool, now: float) -> tuple[Header, ...]:
        """The headers at ``now`` (Unix time)."""
        return tuple(self._headers(anthropic=anthropic, now=now))

    def _headers(self, *, anthropic: bool, now: float) -> Iterator[Header]:
        for unit, room in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if room is None:
                continue
            reset = moment(now + room.reset) if anthropic else duration(room.reset)
            told = {b"limit": str(room.limit), b"remaining": str(room.remaining), b"reset": reset}
            for name, value in told.items():
                yield rate_limit_header(unit, name, anthropic=anthropic), value.encode()


def without_limits(headers: Iterable[Header]) -> tuple[Header, ...]:
    """The headers that tell nothing of limits."""
    return tuple(header for header in headers if header[0] not in RATE_LIMIT_HEADERS)


def duration(seconds: float) -> str:
    """Whole seconds, rounded up: 0s, 59s, 6m0s, 744h0m0s."""
    left = max(0, ceil(seconds))
    hours, minutes = divmod(left // _MINUTE, _MINUTE)
    parts = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{parts}{left % _MINUTE}s"


def moment(now: float) -> str:
    """A moment of Unix time, rounded up to a second: 2027-03-15T12:30:00Z."""
    return datetime.fromtimestamp(ceil(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
