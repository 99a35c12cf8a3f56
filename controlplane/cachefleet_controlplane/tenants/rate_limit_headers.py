"""The headers that tell a client what its tenant's limits leave: OpenAI's, and Anthropic's on its endpoints. Pure.

Seconds. OpenAI has durations as ``6m0s``, Anthropic moments as RFC 3339 has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from math import ceil
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.wire.headers import RATE_LIMIT_HEADERS, Header, rate_limit_header

OPENAI_UNITS: Final = {b"requests": "requests", b"tokens": "tokens"}
"""Units in names of headers, and which limits' they are."""
ANTHROPIC_UNITS: Final = OPENAI_UNITS | {b"input-tokens": "uncached_tokens", b"output-tokens": "output_tokens"}
_MINUTE: Final = 60
_HOUR: Final = 3600


class Room(Struct, frozen=True):
    """What a limit leaves, and the seconds until it is whole again."""

    limit: int
    remaining: int
    reset: float


class Rooms(Struct, frozen=True):
    """What is left of a tenant's requests and tokens, by units of limits; None where they are not limited. Of several
    limits the one that leaves fewest.
    """

    requests: Room | None = None
    tokens: Room | None = None
    uncached_tokens: Room | None = None
    output_tokens: Room | None = None

    def headers(self, *, anthropic: bool, now: float) -> tuple[Header, ...]:
        """The headers at ``now`` (Unix time)."""
        return tuple(self._headers(anthropic=anthropic, now=now))

    def _headers(self, *, anthropic: bool, now: float) -> Iterator[Header]:
        for unit, limited in (ANTHROPIC_UNITS if anthropic else OPENAI_UNITS).items():
            room: Room | None = getattr(self, limited)
            if room is None:
                continue
            reset = moment(now + room.reset) if anthropic else duration(room.reset)
            told = {b"limit": str(room.limit), b"remaining": str(room.remaining), b"reset": reset}
            for name, value in told.items():
                yield rate_limit_header(unit, name, anthropic=anthropic), value.encode()


TOLD: Final = frozenset(Rooms.__struct_fields__)
"""Units of limits of which clients are told."""


def tightest(found: Sequence[Rooms]) -> Rooms:
    """Of several limits of each unit the one that leaves fewest."""
    if len(found) == 1:
        return found[0]
    rooms = {unit: [room for one in found if (room := getattr(one, unit)) is not None] for unit in TOLD}
    return Rooms(**{unit: min(all_, key=_remaining) for unit, all_ in rooms.items() if all_})


def _remaining(room: Room) -> int:
    return room.remaining


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
