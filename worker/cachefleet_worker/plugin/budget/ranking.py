"""Idle blocks in the order in which they are evicted: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice, takewhile

Place = tuple[int, int]
"""Part of the order, and number in it: the smaller one is evicted first."""
_SPENT, _PLAIN, _KEPT = range(3)


class Ranking:
    """First blocks whose time to be kept is over, then others as they were freed, then those that are to be kept.

    ``number`` grows with each chain that is freed, so that places in several rankings compare.
    """

    __slots__ = ("kept", "plain", "spent")

    def __init__(self) -> None:
        self.spent: dict[int, int] = {}
        self.plain: dict[int, int] = {}
        self.kept: dict[int, dict[int, tuple[int, float]]] = {}
        """By the seconds asked for: number and end of each block's time, in the order of both."""

    def __len__(self) -> int:
        return len(self.spent) + len(self.plain) + self.keeping

    def __contains__(self, block: int) -> bool:
        return block in self.plain or block in self.spent or any(block in lane for lane in self.kept.values())

    def __iter__(self) -> Iterator[int]:
        return chain(self.spent, self.plain, self._by_age())

    @property
    def keeping(self) -> int:
        """Number of blocks that are to be kept."""
        return sum(map(len, self.kept.values())) if self.kept else 0

    def add(self, blocks: Iterable[int], number: int, seconds: int = 0, now: float = 0.0) -> None:
        """Blocks were freed at ``now``, to be kept for so many seconds."""
        if seconds:
            self.kept.setdefault(seconds, {}).update(dict.fromkeys(blocks, (number, now + seconds)))
        else:
            self.plain.update(dict.fromkeys(blocks, number))

    def remove(self, block: int) -> bool:
        """Remove a block; returns whether it was there."""
        if self.plain.pop(block, None) is not None or self.spent.pop(block, None) is not None:
            return True
        return bool(self.kept) and self._unkeep(block)

    def spend(self, block: int, number: int) -> None:
        """A block is to be kept no longer."""
        self._unkeep(block)
        self.spent[block] = number

    def leading(self, count: int) -> list[int]:
        """The first blocks, at most ``count``."""
        return list(islice(self, count))

    def place(self) -> Place:
        """The place of its first block; there must be one."""
        for part, blocks in ((_SPENT, self.spent), (_PLAIN, self.plain)):
            if blocks:
                return part, next(iter(blocks.values()))
        return _KEPT, min(next(iter(lane.values()))[0] for lane in self.kept.values())

    def due(self, now: float, most: int) -> list[int]:
        """Blocks to be kept no longer: their time is over, or more than ``most`` are kept; least recent first."""
        ended = [one for lane in self.kept.values() for one in _ended(lane, now)]
        over = {block for block, _ in ended}
        excess = max(0, self.keeping - len(over) - most)
        rest = islice((block for block in self._by_age() if block not in over), excess)
        return [block for block, _ in sorted(ended, key=_number)] + list(rest)

    def _by_age(self) -> Iterator[int]:
        """Blocks that are to be kept, least recently freed first."""
        lanes = merge(*(lane.items() for lane in self.kept.values()), key=_number)
        return (block for block, _ in lanes)

    def _unkeep(self, block: int) -> bool:
        for seconds, lane in self.kept.items():
            if lane.pop(block, None) is not None:
                if not lane:
                    del self.kept[seconds]
                return True
        return False


def _ended(lane: dict[int, tuple[int, float]], now: float) -> Iterator[tuple[int, tuple[int, float]]]:
    return takewhile(lambda one: one[1][1] <= now, lane.items())


def _number(one: tuple[int, tuple[int, float]]) -> int:
    return one[1][0]
