"""The last admitted spec of a pool: what status says of it, and what a new one is judged by (pure)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cachefleet_core.budget import plan_budget
from cachefleet_core.pool.admitted import admission, in_force, last_admitted, same_token_size
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.validation_problems import PoolError
from cachefleet_operator.controlplane_client.pool_facts import Facts
from cachefleet_operator.status.pool_assessment import Manifest, Verdict


def with_known_size(pool: PrefixCachePool, verdict: Verdict, document: Manifest) -> Verdict:
    """The verdict by the token size of the last admitted spec, where no worker reports one now.

    Else an edit made while the control plane is silent would be in force before anybody could refuse it.
    """
    copy = last_admitted(document)
    if verdict.budget is None or verdict.budget.admitted is not None or copy is None:
        return verdict
    if not copy.kv_bytes_per_token or not same_token_size(document, copy):
        return verdict
    return replace(verdict, budget=plan_budget(pool.spec, copy.kv_bytes_per_token))


def admitted(document: Manifest, verdict: Verdict, facts: Facts, current: Collection[str]) -> Manifest | None:
    """What status says of the spec in force: the present one where the verdict admits it, else as before.

    ``current`` names the workers of the present spec: what others tell of a token is said of another one.
    """
    before = last_admitted(document)
    if not verdict.admitted:
        return dict(document["status"]["admitted"]) if before else None
    size = _token_bytes(facts, current)
    if not size and before and same_token_size(document, before):
        size = before.kv_bytes_per_token or 0
    return admission(document, kv_bytes_per_token=size, memory_mib=verdict.memory_mib)


def pool_in_force(document: Manifest) -> PrefixCachePool | None:
    """The pool with the spec that was admitted last, None where none is known."""
    try:
        found = in_force(document)
    except PoolError:
        return None
    return found.pool if found.admitted else None


def _token_bytes(facts: Facts, current: Collection[str]) -> int:
    ours = (member for member in facts.members if member.name in current and not member.excluded)
    told = next((member.block_bytes for member in ours if member.block_bytes), 0)
    contract = facts.pool.contract if facts.pool else None
    size = contract.block_size if contract else 0
    return told // size if size else 0
