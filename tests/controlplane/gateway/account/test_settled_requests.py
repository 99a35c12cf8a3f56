"""Sums of ended requests: whoever reads finds each of them counted once, as if it had been counted when it ended."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.settled_requests import MOST, SettledRequests
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.history.cache_history import FLEET, STEP_SECONDS, Answered, CacheHistory
from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.decision_records import AttemptRecord
from cachefleet_controlplane.store.tenant_records import UsageRecord
from cachefleet_controlplane.store.usage_log import SqlUsage, UsageLog
from cachefleet_core.tenancy import TenantId
from tests.controlplane.gateway.account.test_shortfall_records import holder
from tests.controlplane.gateway.harness import BLOCK_SIZE, FLEET_KEY, MODEL, POOL, Known, engine, front
from tests.controlplane.gateway.tenancies import directory
from tests.controlplane.waiting import until, value
from tests.reference.choice import decide

ATTEMPT = AttemptRecord("w", "answered", 200, 1.0)
NOW = 1_800_000_000.0
ROUTED = decide(Prompt(100, bytes(8 * 6), BLOCK_SIZE), [holder("w", 4)], RoutingPolicy.CACHE_AWARE, 1.0)
DECISIONS = [
    None,
    replace(ROUTED, pool="ns/a"),
    replace(ROUTED, pool="ns/b", knowledge=Knowledge.LOAD, predicted_tokens=0),
    replace(ROUTED, pool="", worker="", verdict="reject", reason="no_room"),
]
TENANTS = [TenantId("acme"), TenantId("umbrella")]
SUMS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
tokens = st.integers(0, 100)
losses = st.dictionaries(st.sampled_from([LostCause.EVICTED, LostCause.LAST_BLOCK]), st.integers(1, 50))


class Told(Fleet):
    """A fleet that adds up what it is told of pools' answers."""

    def __init__(self) -> None:
        super().__init__(BlockIndex(), index_key=FLEET_KEY.index_key)
        self.heard: Counter[tuple[str, str]] = Counter()

    def prompt_served(self, pool: str, prompt: int, served: int, at: float) -> None:
        self.heard += Counter({(pool, "prompt"): prompt, (pool, "served"): served})


def _both(pool: str, tenant: str, answered: Answered) -> Counter[tuple[str, str, str]]:
    tokens = {"prompt": answered.prompt_tokens, "served": answered.served_tokens}
    return Counter({(pool, tenant, name): more for name, more in tokens.items()})


class Settling:
    """Sums with all that they are told to, beside a plain count of each request by itself."""

    def __init__(self) -> None:
        self.now, self.fleet, self.metrics, self.history = NOW, Told(), Metrics(), CacheHistory()
        self.used: list[UsageRecord] = []
        admission = AdmissionMiddleware(
            Known(directory()), hash_key=FLEET_KEY.api_key_hash_key, metrics=self.metrics, record=self.used.append
        )
        context = cast("GatewayContext", SimpleNamespace(fleet=self.fleet, metrics=self.metrics))
        self.contracts: Counter[tuple[str, str, str]] = Counter()
        self.by_tenant: Counter[tuple[str, str, str]] = Counter()
        self.settled = SettledRequests(
            context, self.history, admission.used, wall=lambda: self.now, contracts=self._by_contract
        )
        self.counted: Counter[tuple[str, ...]] = Counter()
        self.steps: Counter[tuple[str, int, str]] = Counter()
        self.use: Counter[tuple[Any, ...]] = Counter()
        self.heard: Counter[tuple[str, str]] = Counter()

    def add(
        self,
        trace: DecisionTrace,
        tenant: TenantId = TENANTS[0],
        used: tuple[int, int, int] = (0, 0, 0),
        answered: Answered | None = None,
        *,
        judged: bool | None = None,
    ) -> None:
        judged = answered is not None and trace.usage is not None if judged is None else judged
        self.settled.add(trace, tenant, used, answered, judged=judged)
        self._count(trace, tenant, used)
        if answered is not None and trace.decision is not None:
            self._count_answered(trace.decision.pool, answered, judged=judged)
            if judged:
                self.by_tenant += _both(trace.decision.pool, tenant, answered)

    def _by_contract(self, pool: str, tenant: str, answered: Answered) -> None:
        self.contracts += _both(pool, tenant, answered)

    def _count(self, trace: DecisionTrace, tenant: TenantId, used: tuple[int, int, int]) -> None:
        count, decision = self.counted, trace.decision
        count["requests", trace.endpoint, trace.model, f"{trace.status // 100}xx"] += 1
        if decision is not None:
            count["decisions", decision.knowledge, decision.policy, decision.verdict] += 1
        if decision is not None and decision.verdict == "reject":
            count["refusals", decision.reason, "reject"] += 1
        if decision is not None and trace.usage is not None and trace.usage.cached_tokens is not None:
            for name, more in zip(
                ("prompt", "predicted", "cached"), (used[0], decision.forecast_tokens, used[1]), strict=True
            ):
                count[f"{name}_tokens", trace.model] += more
        if trace.attempts:
            sums = dict(
                zip(("requests", "prompt_tokens", "cached_tokens", "completion_tokens"), (1, *used), strict=True)
            )
            for name, more in sums.items():
                count[f"tenant_{name}", tenant] += more
                self.use[int(trace.at) // 3600 * 3600, tenant, trace.model, name] += more

    def _count_answered(self, pool: str, answered: Answered, *, judged: bool) -> None:
        step = int(self.now) // STEP_SECONDS * STEP_SECONDS
        told = {"requests": 1, "prompt": answered.prompt_tokens, "served": answered.served_tokens} | answered.lost
        for each in (pool, FLEET):
            for name, more in told.items():
                self.steps[each, step, name] += more
        for cause, more in answered.lost.items():
            self.counted["lost_tokens", cause, pool] += more
        if judged:
            both = {"prompt": answered.prompt_tokens, "served": answered.served_tokens}
            self.counted["pool_answered_tokens", pool] += both["prompt"]
            self.counted["pool_served_tokens", pool] += both["served"]
            self.heard += Counter({(pool, name): more for name, more in both.items()})

    def agree(self) -> None:
        """Whoever reads finds what was counted."""
        samples = [sample for family in self.metrics.registry.collect() for sample in family.samples]
        names = {name for name, *_ in self.counted}
        found = {
            (name, *[label for _, label in sorted(sample.labels.items())]): sample.value
            for sample in samples
            if (name := sample.name.removeprefix("cachefleet_").removesuffix("_total")) in names
        }
        assert found == self.counted
        assert self.contracts == self.by_tenant
        steps: Counter[tuple[str, int, str]] = Counter()
        for pool in ("ns/a", "ns/b", FLEET):
            for step in self.history.steps(pool, self.now):
                told = {"requests": step.requests, "prompt": step.prompt_tokens, "served": step.served_tokens}
                steps.update({(pool, step.at, name): more for name, more in (told | step.lost).items()})
        assert steps == self.steps
        use: Counter[tuple[Any, ...]] = Counter()
        for one in self.used:
            for name in SUMS:
                use[one.hour, one.tenant, one.model, name] += getattr(one, name)
        assert use == self.use
        assert self.fleet.heard == self.heard


def trace_of(decision: Decision | None, **changes: Any) -> DecisionTrace:
    own: dict[str, Any] = {"id": "d", "at": NOW, "model": "m", "endpoint": "chat", "decision": decision}
    return DecisionTrace(**own | changes)


@st.composite
def requests(draw: st.DrawFn) -> tuple[DecisionTrace, TenantId, tuple[int, int, int], Answered | None]:
    decision = draw(st.sampled_from(DECISIONS))
    sent = decision is not None and decision.worker != ""
    usage = draw(st.none() | st.builds(Usage, tokens, tokens, st.none() | tokens)) if sent else None
    used = (0, 0, 0) if usage is None else (usage.prompt_tokens, usage.cached_tokens or 0, usage.completion_tokens or 0)
    trace = trace_of(
        decision,
        at=NOW - draw(st.sampled_from([0, 1, 3600])),
        model=draw(st.sampled_from("mn")),
        status=draw(st.sampled_from([200, 404, 503])),
        usage=usage,
        attempts=[ATTEMPT] if sent else [],
    )
    lost = draw(losses)
    answered = Answered(requests=1, prompt_tokens=150, served_tokens=150 - sum(lost.values()), lost=lost)
    return trace, draw(st.sampled_from(TENANTS)), used, answered if sent and draw(st.booleans()) else None


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.4, 1.0, 11.0]), st.booleans(), requests()), max_size=30))
def test_sums_are_those_of_the_requests_whenever_they_are_read(moves: list[tuple[float, bool, Any]]) -> None:
    settling = Settling()
    for seconds, read, request in moves:
        settling.now += seconds
        settling.add(*request)
        if read:
            settling.agree()
    settling.agree()


HIT = replace(ROUTED, pool="ns/a")
REFUSED = replace(HIT, verdict="reject", reason="no_room")
USAGE = Usage(100, 7, 50)
ALIKE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tenant": ({}, {"tenant": TENANTS[1]}),
    "hour": ({}, {"at": NOW - 3600}),
    "when it ended": ({}, {"ended": NOW + 11}),
    "model": ({}, {"model": "n"}),
    "endpoint": ({}, {"endpoint": "messages"}),
    "status": ({}, {"status": 503}),
    "whether it tells what was cached": ({}, {"usage": replace(USAGE, cached_tokens=None)}),
    "whether a worker was asked": ({}, {"attempts": []}),
    "whether it measures the cache": ({}, {"judged": False}),
    "pool": ({}, {"decision": replace(HIT, pool="ns/b")}),
    "policy": ({}, {"decision": replace(HIT, policy="roundRobin")}),
    "verdict": ({}, {"decision": replace(HIT, verdict="reject")}),
    "knowledge": ({}, {"decision": replace(HIT, knowledge=Knowledge.EXACT)}),
    "reason": ({"decision": REFUSED}, {"decision": replace(REFUSED, reason="queue_full")}),
}
"""Two requests that differ in one thing alone."""


@pytest.mark.parametrize(("one", "other"), ALIKE.values(), ids=ALIKE)
@pytest.mark.parametrize("order", [1, -1], ids=["in this order", "the other one first"])
def test_requests_that_differ_in_one_thing_are_not_added_up(
    one: dict[str, Any], other: dict[str, Any], order: int
) -> None:
    settling = Settling()
    for changes in [one, one | other][::order]:
        own = {"decision": HIT, "usage": USAGE, "attempts": [ATTEMPT], "status": 200, **changes}
        tenant, judged, settling.now = own.pop("tenant", TENANTS[0]), own.pop("judged", True), own.pop("ended", NOW)
        answered = Answered(requests=1, prompt_tokens=100, served_tokens=93, lost={LostCause.EVICTED: 7})
        settling.add(trace_of(**own), tenant, (100, 50, 7), answered, judged=judged)
    settling.now = NOW + 11
    settling.agree()


def test_sums_that_nobody_reads_are_bounded() -> None:
    settling = Settling()
    for number in range(MOST + 1):
        settling.add(trace_of(None, model=f"m{number}", attempts=[ATTEMPT]))
    assert len(settling.settled._sums) == 1
    assert len(settling.used) == MOST
    settling.agree()


@pytest.mark.parametrize("reader", ["metrics", "history", "hit ratio", "usage"])
async def test_who_reads_first_finds_the_request_that_has_just_ended(reader: str, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(front([await stack.enter_async_context(engine())]))
        database = stack.enter_context(closing(Database(f"sqlite:///{tmp_path}/x.db", timeout_seconds=10)))
        usage = UsageLog(SqlUsage(database), metrics=gate.metrics, wall_clock=time.time)
        stack.callback(usage._thread.shutdown)
        gate.gateway._admission._record = usage.record
        assert (await gate.chat("x"))[0] == 200
        await until(lambda: len(gate.records) == 1)
        labels = {"model": MODEL, "endpoint": gate.records[0].endpoint, "status_class": "2xx"}
        if reader == "metrics":
            assert value(gate.metrics, "requests_total", **labels) == 1
        elif reader == "history":
            assert [step.requests for step in gate.history.steps(POOL, time.time())] == [1]
        elif reader == "hit ratio":
            assert gate.fleet.view().pools[0].hit_ratio.answered_tokens > 0
        else:
            assert [one.requests for one in await usage.between(0, 2**62, limit=9)] == [1]
