"""Minutes that were judged, of one contract or one pool's advice. Pure: minutes are numbers since 1970.

An hour is one set of bits for the minutes that were judged, and one for each reason why some of them were not met. So
joining what several replicas saw, or seeing the same twice, is a union: a minute is judged where any of them judged it,
and not met where any of them saw that it was not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, field

HOUR_MINUTES: Final = 60
JUDGED: Final = ""
"""In place of a reason: the bits of all minutes that were judged."""


class Tally(Struct):
    """Minutes that were judged."""

    minutes: int = 0
    met: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    """Minutes by reason; one may have several."""
    evicted: int = 0
    """Blocks evicted against a contract."""

    def add(self, more: Tally) -> None:
        """Count these, too."""
        self.minutes += more.minutes
        self.met += more.met
        self.misses.update(more.misses)
        self.evicted += more.evicted


class HourPart(Struct, frozen=True):
    """The minutes of one hour (a number since 1970) that have one reason, or were judged at all."""

    hour: int
    reason: str
    bits: int
    """The first minute is the lowest."""
    evicted: int = 0
    """Blocks, over all these minutes."""


class _Hour(Struct):
    bits: dict[str, int] = field(default_factory=dict)
    evicted: dict[str, dict[int, int]] = field(default_factory=dict)
    """Blocks by reason and minute of the hour."""

    def parts(self, hour: int) -> Iterator[HourPart]:
        for reason, bits in self.bits.items():
            yield HourPart(hour, reason, bits, sum(self.evicted.get(reason, {}).values()))


class JudgedMinutes:
    """The last ``hours`` of them; older ones are forgotten as new ones are judged."""

    def __init__(self, hours: int) -> None:
        self._most = hours
        self._hours: dict[int, _Hour] = {}
        self._changed: set[int] = set()

    def judge(self, minute: int, reasons: Iterable[str], *, evicted: int = 0, of: str = JUDGED) -> None:
        """Note a minute that ended, and why it was not met; ``evicted`` blocks belong to the reason ``of``."""
        hour, place = divmod(minute, HOUR_MINUTES)
        found = self._hours.setdefault(hour, _Hour())
        for reason in (JUDGED, *reasons):
            found.bits[reason] = found.bits.get(reason, 0) | 1 << place
        if evicted:
            found.evicted.setdefault(of, {})[place] = evicted
        self._changed.add(hour)
        self.forget(hour)

    def join(self, part: HourPart) -> None:
        """Add what is known of an hour from elsewhere; blocks that are new are spread over the part's minutes."""
        found = self._hours.setdefault(part.hour, _Hour())
        found.bits[part.reason] = found.bits.get(part.reason, 0) | part.bits
        known = sum(found.evicted.get(part.reason, {}).values())
        if part.evicted > known:
            places = [place for place in range(HOUR_MINUTES) if part.bits >> place & 1]
            found.evicted[part.reason] = _spread(part.evicted, places)

    def take_changed(self) -> list[HourPart]:
        """What was judged since the last call, by whole hours."""
        changed = [part for hour in sorted(self._changed & set(self._hours)) for part in self._hours[hour].parts(hour)]
        self._changed.clear()
        return changed

    def change(self, hour: int) -> None:
        """An hour could not be written: it is changed again."""
        self._changed.add(hour)

    def tally(self, first: int, end: int) -> Tally:
        """The minutes from ``first`` on and before ``end``."""
        found = Tally()
        for hour, one in self._hours.items():
            if mask := _mask(first - hour * HOUR_MINUTES, end - hour * HOUR_MINUTES):
                found.add(_tally(one, mask))
        return found

    def forget(self, hour: int) -> None:
        """Forget what is too old in this hour."""
        for old in [one for one in self._hours if one <= hour - self._most]:
            del self._hours[old]


def _mask(first: int, end: int) -> int:
    """Bits of an hour's minutes in this range of places, which may lie outside of it."""
    first, end = max(0, first), min(HOUR_MINUTES, end)
    return (1 << end) - (1 << first) if first < end else 0


def _tally(hour: _Hour, mask: int) -> Tally:
    judged = hour.bits.get(JUDGED, 0) & mask
    missed = {reason: bits & judged for reason, bits in hour.bits.items() if reason != JUDGED and bits & judged}
    any_missed = 0
    for bits in missed.values():
        any_missed |= bits
    blocks = (one for places in hour.evicted.values() for one in places.items())
    return Tally(
        judged.bit_count(),
        (judged & ~any_missed).bit_count(),
        Counter({reason: bits.bit_count() for reason, bits in missed.items()}),
        sum(count for place, count in blocks if mask >> place & 1),
    )


def _spread(blocks: int, places: list[int]) -> dict[int, int]:
    """Blocks over these minutes, as evenly as they go."""
    each, more = divmod(blocks, len(places)) if places else (0, 0)
    return {place: each + (number < more) for number, place in enumerate(places)}
