"""Idle blocks in the order in which they are evicted: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice, takewhile

Place = tuple[int, int]
"""Part of the order, and number in it: the smaller one is evicted first."""
_SPENT, _PLAIN, _KEPT, _HELD = range(4)


class Ranking:
    """First blocks whose time to be kept is over, then others as they were freed, then those that are to be kept, then
    those of owners with a contract.

    ``number`` grows with each chain that is freed, so that places in several rankings compare.
    """

    __slots__ = ("held", "kept", "plain", "spent")

    def __init__(self) -> None:
        self.spent: dict[int, int] = {}
        self.plain: dict[int, int] = {}
        self.kept: dict[int, dict[int, tuple[int, float]]] = {}
        """By the seconds asked for: number and end of each block's time, in the order of both."""
        self.held: dict[int, int] = {}
        """Of owners with a contract, as they were freed."""

    def __len__(self) -> int:
        return len(self.spent) + len(self.plain) + self.keeping + len(self.held)

    def __contains__(self, block: int) -> bool:
        if block in self.plain or block in self.spent or block in self.held:
            return True
        return any(block in lane for lane in self.kept.values())

    def __iter__(self) -> Iterator[int]:
        return chain(self.spent, self.plain, self._by_age(), self.held)

    def unheld(self) -> Iterator[tuple[Place, int]]:
        """Places and numbers of all blocks but those of owners with a contract, in order."""
        for part, blocks in ((_SPENT, self.spent), (_PLAIN, self.plain)):
            yield from (((part, number), block) for block, number in blocks.items())
        yield from (((_KEPT, at), block) for at, block in enumerate(self._by_age()))

    def until(self, number: int) -> Iterator[tuple[Place, int]]:
        """The same of its plain blocks alone, up to those freed with this number."""
        plain = takewhile(lambda one: one[1] <= number, self.plain.items())
        return (((_PLAIN, freed), block) for block, freed in plain)

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

    def hold(self, blocks: Iterable[int], number: int) -> None:
        """Blocks of an owner with a contract were freed."""
        self.held.update(dict.fromkeys(blocks, number))

    def remove(self, block: int) -> bool:
        """Remove a block; returns whether it was there."""
        for lane in (self.plain, self.spent, self.held):
            if lane.pop(block, None) is not None:
                return True
        return bool(self.kept) and self._unkeep(block)

    def spend(self, block: int, number: int) -> None:
        """A block is to be kept no longer."""
        self._unkeep(block)
        self.spent[block] = number

    def flatten(self) -> dict[int, int]:
        """Make all blocks plain ones, as they were freed; these, with their numbers."""
        kept = {block: number for lane in self.kept.values() for block, (number, _) in lane.items()}
        self.plain = _by_number(self.plain | self.spent | kept | self.held)
        self.spent, self.kept, self.held = {}, {}, {}
        return self.plain

    def move(self, blocks: dict[int, int], *, held: bool) -> None:
        """Hold these blocks, given with their numbers, or hold them no longer."""
        for block in blocks:
            self.remove(block)
        if held:
            self.held = _by_number(self.held | blocks)
        else:
            self.plain = _by_number(self.plain | blocks)

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


def _by_number(blocks: dict[int, int]) -> dict[int, int]:
    return dict(sorted(blocks.items(), key=lambda one: one[1]))


def _ended(lane: dict[int, tuple[int, float]], now: float) -> Iterator[tuple[int, tuple[int, float]]]:
    return takewhile(lambda one: one[1][1] <= now, lane.items())


def _number(one: tuple[int, tuple[int, float]]) -> int:
    return one[1][0]
