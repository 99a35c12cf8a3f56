"""Eviction order by whole chains: pure.

For models with several KV cache groups, or one that keeps less than everything. A hit there needs blocks of every
group at one position, so evicting single blocks would turn a hit of hundreds of blocks into none. The unit is the
*chain*: all idle cached blocks, over all groups, that one request was the last to use. Blocks only ever move to a more
recently used chain and the least recently used chain is evicted first, as a whole: a chain that stays keeps all that
its hit needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import chain as concatenated
from itertools import islice


class Chain:
    """Idle blocks that one request was the last to use."""

    __slots__ = ("away", "core", "dead", "spare")

    def __init__(self) -> None:
        self.core: dict[int, None] = {}
        """Idle blocks that a full hit on it, or on another chain, needs."""
        self.spare: dict[int, None] = {}
        """Idle blocks that left its window while it ran, oldest first: of use to a branch only."""
        self.away = 0
        """Number of its blocks that running requests use."""
        self.dead = False
        """Evicted, or never kept: its blocks in use will not return to it."""

    @property
    def size(self) -> int:
        """Number of its idle blocks."""
        return len(self.core) + len(self.spare)

    def lose(self, block: int) -> None:
        """Remove a block; unknown ones change nothing."""
        if block in self.core:
            del self.core[block]
        else:
            self.spare.pop(block, None)


class ChainOrder:
    """Idle cached blocks by number, in chains, least recently used first, and the bound on them.

    Methods that can exceed the bound return the blocks to evict, which are already forgotten here.
    """

    def __init__(self) -> None:
        self.limit: int | None = None
        self._kept: OrderedDict[Chain, None] = OrderedDict()
        """Chains of ended requests, least recently used first."""
        self._live: dict[str, Chain] = {}
        """Chains of running requests that have any."""
        self._late: dict[tuple[int, ...], Chain] = {}
        """Chains of ended requests whose blocks are freed later, by those blocks."""
        self._holder: dict[int, Chain] = {}
        """The chain of every idle cached block."""
        self._home: dict[int, Chain] = {}
        """The chain in which running requests found a block."""
        self._user: dict[int, Chain] = {}
        """The chain of the last request that used a block in use."""

    def __len__(self) -> int:
        return len(self._holder)

    def __contains__(self, block: int) -> bool:
        return block in self._holder

    def touched(self, blocks: Collection[int], request: str | None = None) -> None:
        """Blocks are used by one more request; None stands for a user that is no request."""
        for block in blocks:
            holder = self._holder.pop(block, None)
            if holder is not None:
                holder.lose(block)
                if block not in self._home:
                    self._home[block] = holder
                    holder.away += 1
        if request is not None:
            self._user.update(dict.fromkeys(blocks, self._chain(request)))

    def slid(self, request: str, idle: list[int], needed: Callable[[], int]) -> list[int]:
        """Cached blocks left a running request's window and are idle now.

        ``needed`` gives the blocks, over all groups, that a full hit on the request needs so far: where they and the
        blocks it left exceed the bound, its own are evicted first.
        """
        chain = self._chain(request)
        found = {block for block in idle if self._standing(block) is not None} if self._home else ()
        self._hold([block for block in idle if block in found], chain, chain.core)
        self._hold([block for block in idle if block not in found], chain, chain.spare)
        if self.limit is None or len(self) <= self.limit:
            return []
        own = [chain] if needed() + chain.size > self.limit else []
        return self._shrink(own, own=chain)

    def closed(self, request: str, idle: list[int], shared: list[int]) -> list[int]:
        """A request ended: its cached blocks that are idle now, and those still in use."""
        return self._close(self._live.pop(request, Chain()), idle, shared)

    def deferred(self, request: str, blocks: Iterable[int]) -> None:
        """A request ended; ``blocks``, cached or not, will be freed later, in this order."""
        self._late[tuple(blocks)] = self._live.pop(request, Chain())

    def freed(self, blocks: Iterable[int], idle: list[int], shared: list[int]) -> list[int]:
        """``blocks`` were freed outside of any request: deferred ones, or ones that a copy had pinned."""
        late = self._late.pop(tuple(blocks), None)
        if late is not None:
            return self._close(late, idle, shared)
        fresh = Chain()
        for block in idle:
            self._return(block, fresh)
        return self._shrink()

    def gone(self, blocks: Collection[int]) -> None:
        """Blocks are no longer cached, or were allocated anew."""
        for block in blocks if self._holder else ():
            holder = self._holder.pop(block, None)
            if holder is not None:
                holder.lose(block)
                self._tidy(holder)
        self._settle(blocks)
        self._unuse(blocks)

    def clear(self) -> None:
        """Nothing is cached any more."""
        for known in (self._kept, self._live, self._late, self._holder, self._home, self._user):
            known.clear()

    def resize(self, limit: int | None) -> list[int]:
        """Set the bound, in blocks; None is no bound."""
        self.limit = limit
        return self._shrink()

    def _chain(self, request: str) -> Chain:
        chain = self._live.get(request)
        if chain is None:
            chain = self._live[request] = Chain()
        return chain

    def _standing(self, block: int) -> Chain | None:
        home = self._home.get(block)
        return None if home is None or home.dead else home

    def _hold(self, blocks: list[int], chain: Chain, part: dict[int, None]) -> None:
        """Add idle blocks to this part of a chain."""
        self._unuse(blocks)
        self._holder.update(dict.fromkeys(blocks, chain))
        part.update(dict.fromkeys(blocks))

    def _unuse(self, blocks: Iterable[int]) -> None:
        if self._user:
            for block in blocks:
                self._user.pop(block, None)

    def _settle(self, blocks: Iterable[int]) -> None:
        """Blocks no longer count as found in another chain."""
        if not self._home:
            return
        for block in blocks:
            home = self._home.pop(block, None)
            if home is not None:
                home.away -= 1
                if not home.away:
                    self._tidy(home)

    def _tidy(self, chain: Chain) -> None:
        if not chain.away and not chain.size:
            self._kept.pop(chain, None)

    def _return(self, block: int, fresh: Chain) -> None:
        """A block that a copy or a transfer had pinned is idle again: it joins the chain that used it last."""
        owner = self._user.get(block) or self._standing(block)
        if owner is None or owner.dead:
            owner = fresh
        self._hold([block], owner, owner.core)
        if not self._unfinished(owner):
            self._settle([block])
            self._kept.setdefault(owner)

    def _unfinished(self, chain: Chain) -> bool:
        return any(chain is other for other in concatenated(self._live.values(), self._late.values()))

    def _close(self, chain: Chain, idle: list[int], shared: list[int]) -> list[int]:
        core = len(chain.core) + len(idle) + len(shared)
        if self.limit is not None and core > self.limit:
            return self._refuse(chain, idle)
        self._hold(idle, chain, chain.core)
        self._settle(chain.core)
        self._settle(shared)
        self._home.update(dict.fromkeys(shared, chain))
        chain.away += len(shared)
        excess = 0 if self.limit is None else max(0, core + len(chain.spare) - self.limit)
        victims = self._drop(list(islice(chain.spare, excess))) + self._shrink()
        if chain.away or chain.size:
            self._kept[chain] = None
        return victims

    def _refuse(self, chain: Chain, idle: list[int]) -> list[int]:
        """Evict what a chain over the whole bound cached; blocks it found return to their chains, which may shrink."""
        found: dict[Chain, None] = {}
        victims: list[int] = []
        for block in [*chain.core, *chain.spare, *idle]:
            home = self._standing(block)
            if home is None or home is chain:
                victims.append(block)
            else:
                chain.lose(block)
                self._hold([block], home, home.core)
                self._settle([block])
                found[home] = None
        chain.dead = True
        return self._drop(victims) + self._shrink(found)

    def _drop(self, blocks: list[int]) -> list[int]:
        self.gone(blocks)
        return blocks

    def _shrink(self, first: Iterable[Chain] = (), own: Chain | None = None) -> list[int]:
        """Evict down to the bound: from ``first``, the least recently used, ``own``, then other running requests'."""
        victims: list[int] = []
        if self.limit is None:
            return victims
        for chain in first:
            victims += self._evict(chain, len(self) - self.limit)
        while self._kept and len(self) > self.limit:
            victims += self._evict(next(iter(self._kept)), len(self) - self.limit)
        if len(self) > self.limit:
            for chain in [own or Chain(), *self._live.values(), *self._late.values()]:
                victims += self._evict(chain, len(self) - self.limit)
        return victims

    def _evict(self, chain: Chain, excess: int) -> list[int]:
        """Evict a kept chain whole; from a running request's chain no more than needed, spare blocks first."""
        if excess <= 0:
            return []
        if chain not in self._kept:
            victims = self._drop(list(islice(chain.spare, excess)))
            return victims + self._break(chain, len(self) - excess + len(victims))
        chain.dead = True
        del self._kept[chain]
        return self._drop([*chain.spare, *chain.core])

    def _break(self, chain: Chain, down_to: int) -> list[int]:
        """Evict blocks that a running request found; the chain they were found in is then useless and goes too."""
        victims: list[int] = []
        while chain.core and len(self) > down_to:
            block = next(iter(chain.core))
            home = self._standing(block)
            victims += self._drop([block])
            if home is not None and home in self._kept:
                victims += self._evict(home, 1)
        return victims
