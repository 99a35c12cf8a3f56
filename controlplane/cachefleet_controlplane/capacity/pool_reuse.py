"""Reuse distances of each pool's blocks, sampled, in bounded memory: fed with answered requests, read as a curve.

Native code (``native/src/reuse``) keeps the order of last use of a sample of the blocks, and at which place in it each
block that is asked for again is found. Nothing of a prompt is kept but block keys, which are keyed hashes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from cachefleet_native import ReuseDistances
from msgspec import Struct

from cachefleet_core.tenancy import TenantId

ENTRIES: Final = 65_536
"""Sampled blocks of one pool: about 5 MiB."""
MAX_POOLS: Final = 32
"""Those asked of least lately are dropped first."""
MAX_TENANTS: Final = 32
"""Of one pool; those that asked least lately are dropped first."""
REACH: Final = 6
"""Caches of so many times the pool's own can be asked for."""


class Window(IntEnum):
    """Which requests count; the value is the window's number in native code."""

    RECENT = 0
    DAY = 1


HALF_LIVES: Final = {Window.RECENT: 3600.0, Window.DAY: 86_400.0}
"""Seconds after which a request counts half."""


class ReusedPrompt(Struct, frozen=True, kw_only=True):
    """An answered request by the packed block keys of its prompt."""

    keys: bytes
    block_size: int
    prompt_tokens: int
    completion_tokens: int
    servable_blocks: int
    """Those that an engine may serve from cache."""
    served_tokens: int
    elsewhere_tokens: int = 0
    """Those that were computed though another worker held them."""
    tenant: TenantId

    @property
    def answer_blocks(self) -> int:
        """Blocks that its answer has filled."""
        full = (self.prompt_tokens + self.completion_tokens) // self.block_size
        return max(0, full - len(self.keys) // 8)


class ReuseSums(Struct, frozen=True):
    """Of all requests since some time, none faded."""

    requests: int = 0
    prompt_tokens: int = 0
    served_tokens: int = 0
    computed_blocks: float = 0.0
    """What was not served, in blocks."""

    @property
    def served_ratio(self) -> float:
        """Of the prompt tokens, those that came from cache; 0 where there were none."""
        return min(1.0, self.served_tokens / self.prompt_tokens) if self.prompt_tokens else 0.0

    def plus(self, more: ReuseSums) -> ReuseSums:
        """With these, too."""
        return ReuseSums(
            self.requests + more.requests,
            self.prompt_tokens + more.prompt_tokens,
            self.served_tokens + more.served_tokens,
            self.computed_blocks + more.computed_blocks,
        )

    def less(self, before: ReuseSums) -> ReuseSums:
        """What came after these; all of it where counting has begun anew since."""
        if self.requests < before.requests:
            return self
        return ReuseSums(
            self.requests - before.requests,
            self.prompt_tokens - before.prompt_tokens,
            self.served_tokens - before.served_tokens,
            self.computed_blocks - before.computed_blocks,
        )


class ReuseCurve(Struct, frozen=True):
    """A window's sums, faded, and what caches of several sizes would have served of them."""

    requests: float
    prompt_tokens: float
    servable_tokens: float
    served_tokens: float
    elsewhere_tokens: float
    seconds: float
    """How long the window is, as its requests count."""
    shares: Sequence[float]
    """Of the servable tokens, by capacity."""

    @property
    def served_ratio(self) -> float:
        """Of the prompt tokens, those that came from cache."""
        return self._of_prompts(self.served_tokens)

    @property
    def elsewhere_ratio(self) -> float:
        """Of the prompt tokens, those that only other workers had."""
        return self._of_prompts(self.elsewhere_tokens)

    @property
    def ratios(self) -> list[float]:
        """Of the prompt tokens, those that each of the caches would have served."""
        return [self._of_prompts(share * self.servable_tokens) for share in self.shares]

    def _of_prompts(self, tokens: float) -> float:
        return min(1.0, tokens / self.prompt_tokens) if self.prompt_tokens else 0.0


class PoolReuse:
    """Of one pool."""

    def __init__(self, entries: int = ENTRIES) -> None:
        self._distances = ReuseDistances(entries, list(HALF_LIVES.values()), MAX_TENANTS)
        self._tenants: OrderedDict[TenantId, int] = OrderedDict()
        self._reach = 0.0
        self._requests = self._prompt_tokens = self._served_tokens = 0
        self._computed_blocks = 0.0

    @property
    def sums(self) -> ReuseSums:
        """Of all requests, since this began."""
        return ReuseSums(self._requests, self._prompt_tokens, self._served_tokens, self._computed_blocks)

    @property
    def tenants(self) -> list[TenantId]:
        """Those of whose requests there is a curve."""
        return list(self._tenants)

    @property
    def depth(self) -> float:
        """Blocks that have been asked for, as far as REACH caches."""
        return self._distances.size()[1]

    @property
    def sampled(self) -> float:
        """The share of blocks that is looked at."""
        return self._distances.size()[2]

    def note(self, prompt: ReusedPrompt, now: float) -> None:
        """Add an answered request; ``now`` is monotonic."""
        self._requests += 1
        self._prompt_tokens += prompt.prompt_tokens
        self._served_tokens += prompt.served_tokens
        self._computed_blocks += max(0, prompt.prompt_tokens - prompt.served_tokens) / prompt.block_size
        self._distances.note(
            prompt.keys,
            prompt.servable_blocks,
            prompt.answer_blocks,
            prompt.block_size,
            prompt.prompt_tokens,
            prompt.served_tokens,
            prompt.elsewhere_tokens,
            self._number(prompt.tenant),
            now,
        )

    def fit(self, blocks: float) -> None:
        """The pool's caches hold so many blocks in all; it is looked at as few as find room with REACH times these."""
        if blocks > 0 and blocks * REACH > self._reach:
            self._reach = blocks * REACH
            self._distances.reach(self._reach)

    def curve(self, window: Window, capacities: Sequence[float], now: float) -> ReuseCurve:
        """What caches of these rising sizes, in blocks, would have served."""
        return ReuseCurve(*self._distances.curve(window, capacities, now))

    def tenant_curve(self, tenant: TenantId, capacities: Sequence[float], now: float) -> ReuseCurve:
        """The same of a tenant's requests, in the recent window. KeyError for one of which nothing is known."""
        return ReuseCurve(*self._distances.tenant_curve(self._tenants[tenant], capacities, now))

    def _number(self, tenant: TenantId) -> int:
        number = self._tenants.get(tenant)
        if number is None:
            number = len(self._tenants)
            if number >= MAX_TENANTS:
                _, number = self._tenants.popitem(last=False)
                self._distances.forget_tenant(number)
            self._tenants[tenant] = number
        self._tenants.move_to_end(tenant)
        return number


class PoolReuses:
    """Of all pools, by key."""

    def __init__(self) -> None:
        self._pools: OrderedDict[str, PoolReuse] = OrderedDict()

    def note(self, pool: str, prompt: ReusedPrompt, now: float) -> None:
        """Add an answered request of a pool."""
        found = self._pools.get(pool)
        if found is None:
            found = self._pools[pool] = PoolReuse()
            if len(self._pools) > MAX_POOLS:
                self._pools.popitem(last=False)
        self._pools.move_to_end(pool)
        found.note(prompt, now)

    def of(self, pool: str) -> PoolReuse | None:
        """Of one pool; None where no request of it was answered lately."""
        return self._pools.get(pool)
