"""Eviction order by block: pure.

For models with one full-attention group, where a chain that loses blocks from its end only hits a little less. The
order is that of vLLM's own free queue: least recently freed first, a chain's end before its beginning. Where owners
have shares (live_policy.py), one that is over its share gives up its own blocks first, in that order. Blocks that a
contract holds go when nothing else is left, so for running requests alone: shares of contracts add up to 1 at most.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heapify, heappop, heapreplace, merge
from itertools import islice

from cachefleet_worker.plugin.budget.contract_ages import ContractAges
from cachefleet_worker.plugin.budget.owners import NOBODY
from cachefleet_worker.plugin.budget.ranking import Ranking
from cachefleet_worker.plugin.live_policy import EVEN, Shares


class BlockOrder:
    """Idle cached blocks by number, in the order of their eviction, and the bound on them.

    Methods that can exceed the bound return the blocks to evict, which are already forgotten here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit: int | None = None
        self.shares: Shares = EVEN
        self.breaches: Counter[str] = Counter()
        """Blocks evicted though a contract held them, by owner, in all."""
        self._clock = clock
        self._ages: dict[str, ContractAges] = {}
        """Of owners whose blocks contracts hold; none without a bound."""
        self._idle = Ranking()
        self._owned: dict[str, Ranking] = {}
        """The same blocks by owner; owners without any are left out."""
        self._owner: dict[int, str] = {}
        """Owners of cached blocks; a block that is cached anew gets another one."""
        self._keep: dict[int, int] = {}
        """Seconds that cached blocks are to be kept once they are idle, where that was asked for."""
        self._perhaps_over: set[str] = set()
        """Every owner that is over its share, and some that were."""
        self._freed = 0
        self._standing: set[int] = set()
        """Cached blocks that are or were idle, or belong to a kept chain: a chain too large to keep that also uses them
        does not evict them."""

    def __len__(self) -> int:
        return len(self._idle)

    def __contains__(self, block: int) -> bool:
        return block in self._idle

    @property
    def biased(self) -> bool:
        """Whether blocks are evicted in another order than vLLM's own queue has."""
        return bool(self._idle.kept or self._idle.spent) or not self.shares.even

    def owners(self) -> dict[str, int]:
        """Number of idle blocks of each owner that has any."""
        return {owner: len(blocks) for owner, blocks in self._owned.items()}

    def owner_of(self, block: int) -> str:
        """The owner of a cached block."""
        return self._owner.get(block, NOBODY)

    def beside(self, blocks: Collection[int]) -> set[int]:
        """These blocks alone: a hit needs no others."""
        return set(blocks)

    def cached(self, blocks: list[int], owner: str, seconds: int = 0) -> None:
        """Blocks were computed for a request of this owner, which asks that they be kept for so long."""
        self._owner.update(dict.fromkeys(blocks, owner))
        if seconds:
            self._keep.update(dict.fromkeys(blocks, seconds))
        elif self._keep:
            for block in blocks:
                self._keep.pop(block, None)

    def touched(self, blocks: Iterable[int]) -> None:
        """Blocks are used by one more request."""
        plain, held, owned, owner_of = self._idle.plain, self._idle.held, self._owned, self._owner
        for block in blocks if owned else ():
            # As all of them are where nobody asks that anything be kept.
            if plain.pop(block, None) is not None or held.pop(block, None) is not None:
                own = owned[owner_of.get(block, NOBODY)]
                del own.plain[block]
                if not own.plain:
                    self._drop_empty(block)
            elif self._keep and self._idle.remove(block):
                owned[owner_of.get(block, NOBODY)].remove(block)
                self._drop_empty(block)

    def freed(self, idle: list[int], shared: Collection[int]) -> list[int]:
        """One chain was freed, its end first: its cached blocks that are idle now, and those still in use."""
        limit = self.limit
        if limit is not None and len(idle) + len(shared) > limit:
            return self._refused(idle, limit)
        self._standing.update(idle, shared)
        victims: list[int] = []
        for owner in self._add(idle):
            victims += self._excess(owner)
        return victims

    def gone(self, blocks: Collection[int]) -> None:
        """Blocks are no longer cached, or were allocated anew."""
        if self._standing:
            self.touched(blocks)
            self._standing.difference_update(blocks)

    def clear(self) -> None:
        """Nothing is cached any more."""
        self._idle = Ranking()
        for known in (self._owned, self._owner, self._keep, self._standing, self._perhaps_over):
            known.clear()
        self._ages = {owner: ContractAges(ages.retention) for owner, ages in self._ages.items()}

    def resize(self, limit: int | None, shares: Shares = EVEN) -> list[int]:
        """Set the bound, in blocks (None is no bound), and its shares."""
        self.limit, self.shares = limit, shares
        self._hold({} if limit is None else shares.held)
        self._perhaps_over = set() if shares.even else set(self._owned)
        return self._excess(None)

    def take(self, count: int) -> list[int]:
        """Evict so many blocks, or all there are: they are needed for something else."""
        return self._evicted(count, None)

    def _hold(self, held: Mapping[str, int]) -> None:
        """Have contracts hold blocks of these owners, as of now where they are new, and of no others."""
        for owner in held.keys() ^ self._ages.keys():
            if owner in self._owned:
                self._idle.move(self._owned[owner].flatten(), held=owner in held)
        before, self._ages = self._ages, {}
        for owner, seconds in held.items():
            ages = before.get(owner)
            if ages is None or ages.retention != seconds:
                ages = ContractAges(seconds)
                ages.add(self._freed, self._clock())
            self._ages[owner] = ages

    def _refused(self, chain: list[int], limit: int) -> list[int]:
        """Evict what a chain over the whole bound cached; blocks it found stay, as far as the bound allows."""
        found = [block for block in chain if block in self._standing]
        excess = max(0, len(self._idle) + len(found) - limit)
        spared = bool(self._ages)  # then others may have to go first
        self._add(found if spared else found[excess:])
        victims = [block for block in chain if block not in self._standing] + ([] if spared else found[:excess])
        self._standing.difference_update(victims)
        return victims + (self._excess(None) if spared else [])

    def _add(self, blocks: list[int]) -> list[str]:
        """Add idle blocks, their chain's end first; their owners."""
        keepable = self.shares.keepable(self.limit) if self._keep else 0
        groups = self._groups(blocks, keepable)
        now = self._clock() if keepable or self._ages else 0.0
        for (owner, seconds), members in groups.items():
            self._freed += 1
            own = self._owned.setdefault(owner, Ranking())
            own.add(members, self._freed, seconds, now)
            if owner in self._ages:
                self._idle.hold(members, self._freed)
                self._ages[owner].add(self._freed, now)
            else:
                self._idle.add(members, self._freed, seconds, now)
            if not self.shares.even:
                self._perhaps_over.add(owner)
        return list(dict.fromkeys(owner for owner, _ in groups))

    def _groups(self, blocks: list[int], keepable: int) -> dict[tuple[str, int], list[int]]:
        """Blocks by owner and by the time to keep them; a chain's beginning is kept before its end."""
        owners = [self._owner.get(block, NOBODY) for block in blocks]
        if len(set(owners)) == 1 and (not keepable or owners[0] in self._ages):
            return {(owners[0], 0): blocks}
        groups: dict[tuple[str, int], list[int]] = {}
        left = sum(block in self._keep for block in blocks) - keepable
        for block, owner in zip(blocks, owners, strict=True):
            seconds = self._keep.get(block, 0) if keepable and owner not in self._ages else 0
            if seconds:
                left, seconds = left - 1, 0 if left > 0 else seconds
            groups.setdefault((owner, seconds), []).append(block)
        return groups

    def _excess(self, payer: str | None) -> list[int]:
        excess = 0 if self.limit is None else len(self._idle) - self.limit
        return self._evicted(excess, payer) if excess > 0 else []

    def _evicted(self, count: int, payer: str | None) -> list[int]:
        """Evict ``count`` blocks: the payer's own while it is over its share, then of others over theirs, then any.

        Those that contracts hold go last.
        """
        self._spend()
        victims: list[int] = []
        if self.limit is not None and not self.shares.even:
            if payer is not None:
                victims = self._forget(self._surplus(payer, count))
            victims += self._taken_from_over(count - len(victims))
        if self._ages and len(victims) < count:
            victims += self._forget(self._unheld(count - len(victims)))
            self._count_breaches(self._idle.leading(count - len(victims)))
        return victims + self._forget(self._idle.leading(count - len(victims)))

    def _surplus(self, owner: str, count: int) -> list[int]:
        """An owner's first blocks, as many as it has beyond its share, at most ``count``."""
        return self._owned[owner].leading(min(count, self._beyond(owner))) if owner in self._owned else []

    def _beyond(self, owner: str) -> int:
        blocks = self._owned.get(owner)
        return 0 if blocks is None else max(0, len(blocks) - self.shares.cap(owner, self.limit or 0))

    def _taken_from_over(self, count: int) -> list[int]:
        """Evict of the owners over their shares, at most ``count``: always of the one whose first block goes first."""
        self._perhaps_over = {owner for owner in self._perhaps_over if self._beyond(owner)}
        first = [(self._owned[owner].place(), owner) for owner in self._perhaps_over] if count > 0 else []
        heapify(first)
        victims: list[int] = []
        while first and len(victims) < count:
            owner = first[0][1]
            victims += self._forget(self._surplus(owner, 1))
            if self._beyond(owner):
                heapreplace(first, (self._owned[owner].place(), owner))
            else:
                heappop(first)
        return victims

    def _unheld(self, count: int) -> list[int]:
        """The least recently used blocks that no contract holds, at most ``count``; no owner must be over its share."""
        now = self._clock()
        lapsed = [
            self._owned[owner].until(over)
            for owner, ages in self._ages.items()
            if (over := ages.lapse(now)) and owner in self._owned
        ]
        if not lapsed:
            return self._idle.leading(min(count, len(self._idle) - len(self._idle.held)))
        return [block for _, block in islice(merge(self._idle.unheld(), *lapsed), count)]

    def _count_breaches(self, victims: list[int]) -> None:
        self.breaches.update(self._owner.get(block, NOBODY) for block in victims)

    def _spend(self) -> None:
        """Keep no longer what is kept too long, or what is too much."""
        if self._idle.kept:
            for block in self._idle.due(self._clock(), self.shares.keepable(self.limit)):
                self._freed += 1
                for ranking in (self._idle, self._owned[self._owner.get(block, NOBODY)]):
                    ranking.spend(block, self._freed)

    def _forget(self, victims: list[int]) -> list[int]:
        self.touched(victims)
        self._standing.difference_update(victims)
        return victims

    def _drop_empty(self, block: int) -> None:
        """Forget the owner of a block that was its last idle one."""
        owner = self._owner.get(block, NOBODY)
        if not self._owned[owner]:
            del self._owned[owner]
