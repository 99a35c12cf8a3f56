"""From a pool as the API server has it to what it asks for (pure)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from cachefleet_core.budget import BudgetReason, plan_budget
from cachefleet_core.pool.problems import PoolError
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_operator.controlplane.facts import Facts, PoolFacts
from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.situation import Verdict

Manifest = dict[str, Any]

MAX_PROBLEMS: Final = 5


def judge(document: Manifest) -> tuple[PrefixCachePool | None, Verdict]:
    """What a pool as the API server has it asks for. The schema refuses most nonsense; what slips past ends here."""
    metadata = document["metadata"]
    given: dict[str, Any] = {name: document.get(name) for name in ("apiVersion", "kind", "spec")}
    known = ("name", "namespace", "uid", "generation", "labels", "annotations")
    given["metadata"] = {name: metadata[name] for name in known if name in metadata}
    try:
        pool = read_pool(given)
    except PoolError as error:
        lines = [str(problem) for problem in error.problems[:MAX_PROBLEMS]]
        more = len(error.problems) - len(lines)
        return None, Verdict((Reason.INVALID, "; ".join(lines) + (f"; and {more} more" if more else "")))
    objective = pool.spec.hit.objective
    return pool, Verdict(None, plan_budget(pool.spec), pool.spec.replicas, objective.ratio if objective else None)


def standing(verdict: Verdict, document: Manifest) -> Verdict:
    """A verdict that what a worker once told was needed for stands while the spec does, whoever is silent now."""
    if verdict.budget is None or verdict.budget.admitted is not None:
        return verdict
    for condition in (document.get("status") or {}).get("conditions") or ():
        same = condition.get("observedGeneration") == document["metadata"]["generation"]
        said = condition.get("type") == "BudgetAdmitted" and condition.get("status") in {"True", "False"}
        if said and same and condition.get("reason") in set(BudgetReason):
            admitted, reason = condition["status"] == "True", BudgetReason(condition["reason"])
            budget = replace(verdict.budget, admitted=admitted, reason=reason, message=condition.get("message", ""))
            return replace(verdict, budget=budget)
    return verdict


def learnt(pool: PrefixCachePool, verdict: Verdict, facts: Facts, current: frozenset[str]) -> Verdict:
    """The verdict with the bytes of a token that a worker reports; ``current`` names workers made as it is wanted now.

    What another worker reports may admit the pool and not refuse it: a change of tensor parallelism, data type or block
    size may be what makes it fit.
    """
    known = facts.known or PoolFacts()
    told = [member for member in known.members if member.block_bytes and not member.excluded]
    if not told:
        return verdict
    member = min(told, key=lambda each: each.name not in current)
    ours = member.name in current
    block_size = known.contract.block_size if known.contract and not ours else 0
    budget = plan_budget(pool.spec, member.block_bytes // (block_size or pool.spec.block_size))
    return replace(verdict, budget=budget) if ours or budget.admitted else verdict
