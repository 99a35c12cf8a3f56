"""What is shown of a cache contract: the admin API's answer, read by findings, metrics and the console too."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cachefleet_controlplane.cache_contracts.contract_minutes import ContractMinutes, Miss, Tokens
from cachefleet_controlplane.judgements.judged_minutes import Tally
from cachefleet_core.fleet_status.fields import Count, Ratio
from cachefleet_core.pool.policy import CacheContract


class ContractWindow(Struct, frozen=True, rename="camel"):
    """Minutes of a time that were judged, and those that met the contract."""

    minutes: Count
    met_minutes: Count
    met: Ratio | None
    """Their share; null where none was judged."""
    missed_minutes: dict[str, Count]
    """The others by reason: not_enforced, evicted, hit_objective; one minute may have several."""
    evicted_blocks: Count
    """Blocks that were evicted within share and retention, since running requests needed room."""


class ContractState(Struct, frozen=True, rename="camel"):
    """A tenant's cache contract in a pool, as this replica has seen it kept since it started."""

    pool: str
    tenant: str
    share: Ratio
    retention_seconds: Count
    objective: Ratio | None
    met: bool | None
    """Whether the last minute met it; null before the first one that was judged."""
    reasons: tuple[Annotated[str, Meta(extra_json_schema={"enum": [*Miss]})], ...]
    """Why that one did not."""
    hit_ratio: Ratio | None
    """Of the tenant's prompt tokens in this pool, over the objective's window (600 s without one)."""
    prompt_tokens: Count
    """Of that window."""
    lost_cause: str
    """Why most of the tokens that no cache served were not; empty where there are none."""
    lost_tokens: Count
    """Those of this cause."""
    idle_blocks: Count
    """What the tenant has of the idle caches now, over all workers that tell."""
    hour: ContractWindow
    day: ContractWindow
    """By whole hours, as the month."""
    month: ContractWindow


class ContractStates(Struct, frozen=True):
    """All of them, by pool."""

    items: tuple[ContractState, ...]


def contract_state(pool: str, contract: CacheContract, minutes: ContractMinutes, idle: int) -> ContractState:
    """What is shown of one contract."""
    tokens = minutes.window(contract)
    cause, lost = _largest(tokens)
    return ContractState(
        pool=pool,
        tenant=contract.tenant,
        share=contract.share,
        retention_seconds=contract.retention_seconds,
        objective=contract.hit_objective.ratio if contract.hit_objective else None,
        met=None if minutes.last is None else not minutes.last,
        reasons=tuple(miss.value for miss in minutes.last or ()),
        hit_ratio=tokens.ratio,
        prompt_tokens=tokens.prompt,
        lost_cause=cause,
        lost_tokens=lost,
        idle_blocks=idle,
        hour=contract_window(minutes.hour()),
        day=contract_window(minutes.day()),
        month=contract_window(minutes.month()),
    )


def contract_window(tally: Tally) -> ContractWindow:
    """What is shown of some minutes."""
    return ContractWindow(
        minutes=tally.minutes,
        met_minutes=tally.met,
        met=tally.met / tally.minutes if tally.minutes else None,
        missed_minutes={str(miss): count for miss, count in tally.misses.items()},
        evicted_blocks=tally.evicted,
    )


def _largest(tokens: Tokens) -> tuple[str, int]:
    largest = max(tokens.lost.items(), key=lambda one: (one[1], one[0]), default=None)
    return ("", 0) if largest is None else (largest[0].value, largest[1])
