"""Sums of ended requests that are alike, which metrics, usage, history and hit ratios take when they are read.

Each request is added once. Sums are passed on before anything is read of those who take them, and when there are MOST.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

from cachefleet_controlplane.gateway.account.prices import charge, price, prices_of
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.history.cache_history import FLEET, Answered, CacheHistory
from cachefleet_controlplane.routing.lost_tokens import COMPUTED_TWICE
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_core.pool.policy import PricingSpec
from cachefleet_core.tenancy import TenantId

TenantAnswers = Callable[[str, str, Answered], None]
"""Takes what is known of a tenant's answers in a pool, where engines tell what came from cache."""

MOST: Final = 128
"""Sums of different requests; to pass them on takes about a millisecond."""
HOUR: Final = 3600
_UNDECIDED: Final[tuple[str, ...]] = ("",) * 5


class _Sums(Struct):
    trace: DecisionTrace
    """Of the first request, which tells what all have in common."""
    second: int
    """Unix time in which they ended."""
    at: float
    """The same on the fleet's clock."""
    judged: bool
    used: UsageRecord
    predicted_tokens: int = 0
    answered: Answered = field(default_factory=Answered)


class SettledRequests:
    """Keeps sums until somebody reads; ``wall`` is Unix time in seconds."""

    def __init__(
        self,
        context: GatewayContext,
        history: CacheHistory,
        used: Callable[[UsageRecord], None],
        *,
        wall: Callable[[], float],
        contracts: TenantAnswers | None = None,
    ) -> None:
        self._fleet, self._metrics = context.fleet, context.metrics
        self._history = history
        self._used = used
        self._wall = wall
        self._contracts = contracts
        self._sums: dict[tuple[object, ...], _Sums] = {}
        self._metrics.registry.pending.append(self._pass_on)
        self._fleet.settle = history.settle = self._metrics.registry.settle

    def add(
        self,
        trace: DecisionTrace,
        tenant: TenantId,
        used: tuple[int, int, int],
        answered: Answered | None,
        *,
        judged: bool,
        key: str = "",
    ) -> None:
        """Add a request of a tenant, and of a ``key`` by its ``budget_name``: prompt, cached and completion tokens that
        it ``used``, what is known of its ``answered`` prompt, and whether that is a measure of its pool's cache.
        """
        second, hour = int(self._wall()), int(trace.at) // HOUR * HOUR
        kind = (second, hour, tenant, key, judged, *_kind_of(trace))
        sums = self._sums.get(kind)
        if sums is None:
            if len(self._sums) >= MOST:
                self._metrics.registry.settle()
            record = UsageRecord(hour=hour, tenant=tenant, model=trace.model, key=key)
            sums = self._sums[kind] = _Sums(trace, second, self._fleet.losses.now(), judged, record)
        total = sums.used
        total.requests += 1
        total.prompt_tokens += used[0]
        total.cached_tokens += used[1]
        total.completion_tokens += used[2]
        if trace.answered is not None:
            sums.predicted_tokens += trace.answered.forecast_tokens
        if answered is not None:
            sums.answered.add(answered)

    def charge(self, trace: DecisionTrace, used: tuple[int, int, int]) -> int:
        """What prompt, cached and completion tokens of a request are charged, in picos."""
        pool = self._priced_pool(trace)
        return 0 if pool is None else charge(prices_of(pool.declared.spec), *used)

    def fail(self, trace: DecisionTrace) -> None:
        """Count a request that failed, in the last hour."""
        self._history.fail(trace.decision.pool if trace.decision else FLEET, self._wall())

    def _pass_on(self) -> None:
        waiting, self._sums = self._sums, {}
        for sums in waiting.values():
            self._count(sums)
            if sums.trace.attempts:
                self._price(sums)
                self._used(sums.used)

    def _price(self, sums: _Sums) -> None:
        lost, used = sums.answered.lost, sums.used
        used.recomputed_tokens = sum(lost.get(cause, 0) for cause in COMPUTED_TWICE)
        if (pool := self._priced_pool(sums.trace)) is not None:
            price(used, prices_of(pool.declared.spec), pool.prefill_rate)

    def _priced_pool(self, trace: DecisionTrace) -> Pool | None:
        """The pool that has answered, where it has prices."""
        pool = None if trace.answered is None else self._fleet.pool_of(trace.answered.pool)
        return None if pool is None or pool.declared.spec.pricing == PricingSpec() else pool

    def _count(self, sums: _Sums) -> None:
        metrics, trace, decision, used = self._metrics, sums.trace, sums.trace.answered, sums.used
        metrics.request(model=trace.model, endpoint=trace.endpoint, status=trace.status, requests=used.requests)
        if decision is None:
            return
        metrics.decision(
            policy=decision.policy,
            verdict=decision.verdict,
            knowledge=decision.knowledge,
            reason=decision.reason,
            requests=used.requests,
        )
        metrics.tokens(
            model=trace.model,
            prompt=used.prompt_tokens,
            predicted=sums.predicted_tokens,
            cached=used.cached_tokens if _tells_cached(trace) else None,
        )
        self._count_answered(decision.pool, sums, sums.answered)

    def _count_answered(self, pool: str, sums: _Sums, answered: Answered) -> None:
        for cause, tokens in answered.lost.items():
            self._metrics.lost_tokens(pool=pool, cause=cause, tokens=tokens)
        for reason, tokens in answered.first_seen.items():
            self._metrics.first_seen_tokens(pool=pool, cause=reason, tokens=tokens)
        if answered.requests:
            self._history.add(pool, answered, sums.second)
        if sums.judged:
            self._metrics.prompt_served(pool=pool, prompt=answered.prompt_tokens, served=answered.served_tokens)
            self._fleet.prompt_served(pool, answered.prompt_tokens, answered.served_tokens, sums.at)
            if self._contracts is not None:
                self._contracts(pool, sums.used.tenant, answered)


def _kind_of(trace: DecisionTrace) -> tuple[object, ...]:
    """What requests have in common that are counted as one."""
    decision, by = trace.answered, _UNDECIDED
    if decision is not None:
        by = (decision.pool, decision.policy, decision.verdict, decision.knowledge, decision.reason)
    return trace.model, trace.endpoint, trace.status, _tells_cached(trace), bool(trace.attempts), *by


def _tells_cached(trace: DecisionTrace) -> bool:
    """Whether an answer tells what came from cache."""
    return trace.usage is not None and trace.usage.cached_tokens is not None
