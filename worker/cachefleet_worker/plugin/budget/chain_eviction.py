"""Eviction order by whole chains: pure.

For models with several KV cache groups, or one that keeps less than everything. A hit there needs blocks of every
group at one position, so evicting single blocks would turn a hit of hundreds of blocks into none. The unit is the
*chain*: all idle cached blocks, over all groups, that one request was the last to use. Blocks only ever move to a more
recently used chain and the least recently used chain is evicted first, as a whole: a chain that stays keeps all that
its hit needs. Where owners have shares (live_policy.py), one that is over its share gives up its own chains first, and
chains that a contract holds go last.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable
from itertools import chain as concatenated
from itertools import islice

from cachefleet_worker.plugin.budget.chain import FOREVER_AGO, Chain, Claims, keep
from cachefleet_worker.plugin.budget.owners import NOBODY
from cachefleet_worker.plugin.live_policy import EVEN, Shares


class ChainOrder:
    """Idle cached blocks by number, in chains, least recently used first, and the bound on them.

    Methods that can exceed the bound return the blocks to evict, which are already forgotten here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit: int | None = None
        self.shares: Shares = EVEN
        self.breaches: Counter[str] = Counter()
        """Blocks evicted though a contract held them, by owner, in all."""
        self._clock = clock
        self._counts: Counter[str] = Counter()
        """Idle blocks by owner."""
        self._keep_until = FOREVER_AGO
        """Until when any chain is to be kept."""
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

    @property
    def biased(self) -> bool:
        """Whether chains are evicted in another order than vLLM's own queue has."""
        return not self.shares.even or (self._keep_until > FOREVER_AGO and self._clock() < self._keep_until)

    def owners(self) -> dict[str, int]:
        """Number of idle blocks of each owner that has any."""
        return dict(self._counts)

    def owner_of(self, block: int) -> str:
        """The owner of an idle block."""
        holder = self._holder.get(block)
        return NOBODY if holder is None else holder.owner

    def beside(self, blocks: Collection[int]) -> set[int]:
        """The idle blocks of the chains of these blocks."""
        holders = {holder for block in blocks if (holder := self._holder.get(block)) is not None}
        return {block for holder in holders for block in (*holder.core, *holder.spare)}

    def begun(self, request: str, owner: str, seconds: int = 0) -> None:
        """Blocks were cached for, or found by, a request of this owner, which asks that they be kept for so long."""
        if request not in self._live:
            self._live[request] = Chain(owner, seconds)

    def touched(self, blocks: Collection[int], request: str | None = None) -> None:
        """Blocks are used by one more request; None stands for a user that is no request."""
        for block in blocks:
            holder = self._release(block)
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
        own = [chain] if needed() + chain.size > self.limit or self._claims.over(chain.owner) else []
        return self._shrink(own, own=chain, payer=chain.owner)

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
            holder = self._release(block)
            if holder is not None:
                holder.lose(block)
                self._tidy(holder)
        self._settle(blocks)
        self._unuse(blocks)

    def clear(self) -> None:
        """Nothing is cached any more."""
        for known in (self._kept, self._live, self._late, self._holder, self._home, self._user):
            known.clear()
        self._counts.clear()
        self._keep_until = FOREVER_AGO

    def resize(self, limit: int | None, shares: Shares = EVEN) -> list[int]:
        """Set the bound, in blocks (None is no bound), and its shares."""
        if new := shares.held.keys() - self.shares.held.keys():
            for chain in self._kept:
                chain.since = self._clock() if chain.owner in new else chain.since
        self.limit, self.shares = limit, shares
        return self._shrink()

    def take(self, count: int) -> list[int]:
        """Evict so many blocks, or somewhat more, of ended requests: they are needed for something else."""
        victims: list[int] = []
        while self._kept and len(victims) < count:
            chain = self._next(None)
            if self._holds(chain):
                self.breaches[chain.owner] += chain.size
            victims += self._evict(chain, count - len(victims))
        return victims

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
        if fresh := sum(block not in self._holder for block in blocks):
            self._counts[chain.owner] += fresh
        self._holder.update(dict.fromkeys(blocks, chain))
        part.update(dict.fromkeys(blocks))

    def _release(self, block: int) -> Chain | None:
        """A block is no longer idle; the chain that held it."""
        holder = self._holder.pop(block, None)
        if holder is not None:
            self._counts[holder.owner] -= 1
            if not self._counts[holder.owner]:
                del self._counts[holder.owner]
        return holder

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
        now = FOREVER_AGO if self.shares.even else self._clock()
        if not self.shares.even and self._claims.unaffordable(self._kept, chain.owner, len(idle), now):
            return self._refuse(chain, idle)
        self._hold(idle, chain, chain.core)
        self._settle(chain.core)
        self._settle(shared)
        self._home.update(dict.fromkeys(shared, chain))
        chain.away += len(shared)
        chain.since = now
        if chain.owner not in self.shares.held:
            keep(self._kept, chain, self.shares.keepable(self.limit), self._clock)
        self._keep_until = max(self._keep_until, chain.until)
        excess = 0 if self.limit is None else max(0, core + len(chain.spare) - self.limit)
        victims = self._drop(list(islice(chain.spare, excess))) + self._shrink(payer=chain.owner)
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

    def _shrink(self, first: Iterable[Chain] = (), own: Chain | None = None, payer: str | None = None) -> list[int]:
        """Evict down to the bound: from ``first``, ended ones in turn, ``own``, then other running requests'.

        ``payer`` is the owner that exceeds the bound. What contracts hold fits into it, and stays.
        """
        victims: list[int] = []
        if self.limit is None:
            return victims
        for chain in first:
            victims += [] if self._holds(chain) else self._evict(chain, len(self) - self.limit)
        while self._kept and len(self) > self.limit and not self._holds(chain := self._next(payer)):
            victims += self._evict(chain, len(self) - self.limit)
        if len(self) > self.limit:
            for chain in [own or Chain(), *self._live.values(), *self._late.values()]:
                victims += self._evict(chain, len(self) - self.limit)
        return victims

    def _next(self, payer: str | None) -> Chain:
        """The ended request's chain that is evicted next."""
        if not self.biased:
            return next(iter(self._kept))
        return self._claims.next_to_go(self._kept, payer, self._clock())

    def _holds(self, chain: Chain) -> bool:
        return bool(self.shares.held) and self._claims.held(chain, self._clock())

    @property
    def _claims(self) -> Claims:
        return Claims(self._counts, self.shares, self.limit)

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
