"""What is wrong with pools (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cachefleet_controlplane.admin.findings.finding import Fault, Finding, Severity, faults, operations, troubleshooting
from cachefleet_core.fleet_status.pool_facts import PoolFacts

APART: Final = 0.05
"""How far what was served may be from the engines' own counters without a word."""


def pool_findings(pools: tuple[PoolFacts, ...]) -> Iterator[Finding]:
    """The findings of each pool."""
    for pool in pools:
        yield from faults(_GROUPS, pool, f"pool {pool.key}")
        yield from _name_findings(pool)


def _name_findings(pool: PoolFacts) -> Iterator[Finding]:
    for one in pool.adapter_conflicts:
        named = f"it is asked for as {pool.namespace}/{one.adapter} alone"
        instead = "nobody can ask for it" if one.nameless else named
        owner = f"is that of pool {one.owner}" if one.owner else "may not be had by this namespace"
        yield Finding(
            severity=Severity.WARNING,
            subject=f"pool {pool.key}",
            reason="AdapterNameConflict",
            message=f"the name of adapter {one.adapter} {owner}: {instead}",
            action="name it apart, or ask for it with its namespace where that means it",
            docs=operations("modelnameconflict"),
        )
    for alias in pool.alias_conflicts:
        named = f"it means {pool.model} as {pool.namespace}/{alias.alias} alone"
        instead = f"nothing means {pool.model} by it" if alias.nameless else named
        owner = f"is that of pool {alias.owner}" if alias.owner else "may not be had by this namespace"
        yield Finding(
            severity=Severity.WARNING,
            subject=f"pool {pool.key}",
            reason="AliasConflict",
            message=f"the alias {alias.alias} {owner}: {instead}",
            action="take another alias, or ask for it with its namespace where that means it",
            docs=operations("modelnameconflict"),
        )


def _hit_words(pool: PoolFacts) -> str:
    ratio = pool.hit_ratio
    words = f"of {ratio.tokens:,} prompt tokens in {ratio.window_seconds:,.0f} s {ratio.value or 0:.1%}"
    words = f"{words} came from cache, the objective is {ratio.objective or 0:.1%}"
    counted = ratio.counted
    if not ratio.by_answers or counted is None or abs(counted - (ratio.value or 0)) < APART:
        return words
    return f"{words}; the engines' own counters say {counted:.1%}"


def _none_ready(workers: int) -> str:
    return "its one worker is not ready" if workers == 1 else f"none of its {workers} workers is ready"


_GROUPS: Final[tuple[tuple[Fault[PoolFacts], ...], ...]] = (
    (
        Fault(
            lambda pool: not pool.replicas and not pool.workers.total,
            Severity.INFO,
            "NoWorkersWanted",
            lambda pool: f"replicas is 0, so requests for {pool.model} are refused unless another pool serves it",
            "set replicas to 1 or more to have it serve",
            operations("workersavailable"),
        ),
        Fault(
            lambda pool: not pool.workers.total,
            Severity.CRITICAL,
            "NoWorkers",
            lambda pool: f"it has no worker, so requests for {pool.model} are refused unless another pool serves it",
            "see why none is started: kubectl describe pcp, or what `cachefleet up POOL.yaml` prints",
            troubleshooting("no-ready-worker"),
        ),
        Fault(
            lambda pool: not pool.workers.ready,
            Severity.CRITICAL,
            "NoneReady",
            lambda pool: f"{_none_ready(pool.workers.total)}, so requests for {pool.model} are refused",
            "engines that load need time; else read the log of an engine and of its agent",
            troubleshooting("no-ready-worker"),
        ),
        Fault(
            lambda pool: pool.workers.ready < pool.workers.total,
            Severity.INFO,
            "SomeReady",
            lambda pool: f"{pool.workers.ready} of its {pool.workers.total} workers are ready",
            "engines that load need time; else read the log of an engine and of its agent",
            operations("workersavailable"),
        ),
    ),
    (
        Fault(
            lambda pool: not pool.admitted,
            Severity.WARNING,
            "NotAdmitted",
            lambda _: "its budget is not known to be admitted, so its workers are told no policy",
            "compare budgetMiB with the KV cache: the condition BudgetAdmitted has both numbers",
            operations("budgetadmitted"),
        ),
    ),
    (
        Fault(
            lambda pool: pool.hit_ratio.missed,
            Severity.WARNING,
            "BelowObjective",
            _hit_words,
            "find out why requests miss: `cachefleet explain ID` of one that computed much",
            troubleshooting("why-did-it-miss-the-cache"),
        ),
    ),
)
