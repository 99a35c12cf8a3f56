"""Cache contracts that are not met (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from cachefleet_controlplane.admin.findings.finding import Finding, Severity
from cachefleet_controlplane.cache_contracts.contract_minutes import Miss
from cachefleet_controlplane.cache_contracts.contract_report import ContractState

DOCS: Final = "docs/tenants.md#whether-a-contract-is-met"


def contract_findings(contracts: Iterable[ContractState]) -> Iterator[Finding]:
    """One for each contract that its last minute did not meet: its first reason."""
    for one in contracts:
        if one.reasons:
            words, action = _MISSES[Miss(one.reasons[0])]
            yield Finding(
                severity=Severity.WARNING,
                subject=f"pool {one.pool}",
                reason="ContractNotMet",
                message=f"the cache contract of tenant {one.tenant} is not met: {words(one)}{_share(one)}",
                action=action,
                docs=DOCS,
            )


def _share(one: ContractState) -> str:
    met = one.hour.met
    return "" if met is None else f"; of the last hour it was met in {met:.1%}"


def _hits(one: ContractState) -> str:
    lost = f", most of the rest was lost as {one.lost_cause}" if one.lost_cause else ""
    had = f"of {one.prompt_tokens:,} prompt tokens {one.hit_ratio or 0:.1%} came from cache"
    return f"{had}, the objective is {one.objective or 0:.1%}{lost}"


_MISSES: Final[Mapping[Miss, tuple[Callable[[ContractState], str], str]]] = {
    Miss.NOT_ENFORCED: (
        lambda _: "a worker does not enforce it",
        "run vLLM with the plugin, and a budget above 0: `cachefleet status` names each worker's plugin",
    ),
    Miss.EVICTED: (
        lambda one: f"running requests took {one.hour.evicted_blocks:,} of its blocks in the last hour",
        "lower budgetMiB, so that more is left for running requests, or add a worker",
    ),
    Miss.HIT_OBJECTIVE: (
        _hits,
        "see what its requests lose: `cachefleet explain ID` of one that computed much, and the page Lost hits",
    ),
}
