"""What a live pool shows of its engines, as a modelled fleet: blocks, rates, budget, number of workers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from cachefleet_controlplane.routing.throughput import DEFAULT_BATCHED_TOKENS, DEFAULT_TOKENS_PER_SECOND, OWN_BLOCKS
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.budget import blocks
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts
from cachefleet_core.hit_rule import PLAIN
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import Role
from cachefleet_core.report_frames import Hello

DEFAULT_INTER_TOKEN_SECONDS: Final = 0.02
RUNNING: Final = 256
"""Requests that an engine runs at once, as vLLM does unless it is told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be otherwise; None as today."""

    policy: str | None = None
    budget_mib: int | None = None
    workers: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetModel:
    """A pool as it is today."""

    pool: PrefixCachePool
    contract: IndexContract
    setup: Setup
    budget_mib: int | None
    """None where nothing holds the engines to one."""
    block_bytes: int
    """0 where nobody tells."""
    policy: str

    @property
    def manifest(self) -> dict[str, Any]:
        """The pool's declaration, for another process."""
        return self.pool.model_dump(mode="json", by_alias=True, exclude_none=True)

    def changed(self, changes: Changes) -> Setup:
        """The fleet with these changes. ApiError where they cannot be computed."""
        setup = self.setup
        if changes.workers is not None:
            setup = replace(setup, workers=changes.workers)
        if changes.budget_mib is not None:
            if not self.block_bytes:
                raise ApiError(
                    422, "no worker tells how large a block is: set model.kvBytesPerToken", param="changes.budgetMib"
                )
            setup = replace(setup, budget_blocks=blocks(changes.budget_mib, self.block_bytes))
        return setup


def fleet_model(
    pool: PrefixCachePool, workers: Sequence[WorkerFacts], hellos: Sequence[Hello], *, policy: str
) -> FleetModel:
    """The model of a pool by its ready workers and what they announced. ApiError where it cannot be simulated."""
    key, spec = pool.key, pool.spec
    if spec.role is not Role.BOTH:
        raise ApiError(422, f"pool {key} has the role {spec.role}: only pools that serve whole requests are simulated")
    loads = [worker.load for worker in workers if worker.ready and worker.load is not None]
    if not loads or not hellos:
        raise ApiError(409, f"no worker of pool {key} is ready, so nothing is known of its engines")
    if any(hello.rule != PLAIN or hello.not_indexed for hello in hellos):
        raise ApiError(422, f"engines of pool {key} need more than a prefix for a hit: they are not simulated")
    contract = hellos[0].contract
    told = max(worker.block_bytes for worker in workers)
    block_bytes = told or contract.block_size * (spec.model.kv_bytes_per_token or 0)
    declared = spec.prefix_cache.budget_mib if spec.prefix_cache.enabled else 0
    budget_mib = declared if block_bytes and _bounded(workers) else None
    setup = Setup(
        workers=len(loads),
        blocks=max(1, round(median(load.blocks_total for load in loads)) - OWN_BLOCKS),
        prefill_tokens_per_second=_rate(loads, lambda load: load.prefill_tokens_per_second, DEFAULT_TOKENS_PER_SECOND),
        inter_token_seconds=_rate(loads, lambda load: load.inter_token_seconds, DEFAULT_INTER_TOKEN_SECONDS),
        batched_tokens=max(hello.max_batched_tokens for hello in hellos) or DEFAULT_BATCHED_TOKENS,
        running=RUNNING,
        model_len=max(hello.max_model_len for hello in hellos) or spec.engine.max_model_len,
        budget_blocks=None if budget_mib is None else blocks(budget_mib, block_bytes),
    )
    return FleetModel(
        pool=pool,
        contract=contract,
        setup=setup,
        budget_mib=budget_mib,
        block_bytes=block_bytes,
        policy=policy,
    )


def _rate(loads: Sequence[Load], of: Callable[[Load], float | None], otherwise: float) -> float:
    """What half of the workers that tell exceed."""
    told = [rate for load in loads if (rate := of(load))]
    return median(told) if told else otherwise


def _bounded(workers: Sequence[WorkerFacts]) -> bool:
    """Whether a plugin holds engines to their budget."""
    return any(one.feature == "budget" and one.mode != "off" for worker in workers for one in worker.capabilities)
