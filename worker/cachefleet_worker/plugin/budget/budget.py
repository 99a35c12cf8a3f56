"""The budget: idle cached blocks bounded per device, in MiB, changed while running.

vLLM keeps a finished request's blocks cached until they are needed. Here the bound on such blocks is enforced in
vLLM's own pool, least recently used first (block_eviction.py; by whole chains where a hit needs several groups:
chain_eviction.py), and within it tenants' shares (live_policy.py). A chain larger than the whole bound is not kept and
evicts nothing. Blocks in use are never touched.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from cachefleet_core.engine.cache_flush import FLUSH_FEATURE
from cachefleet_core.report_fields import MAX_IDLE_SALTS, HeldBlocks
from cachefleet_worker.plugin.budget.block_pool import (
    MANAGER_METHODS,
    POOL_INTERNALS,
    POOL_METHODS,
    QUEUE_METHODS,
    BlockWatch,
    ChainWatch,
    Watch,
)
from cachefleet_worker.plugin.budget.kv_groups import block_bytes, blocks_of, cached_groups
from cachefleet_worker.plugin.budget.owners import largest
from cachefleet_worker.plugin.budget.watched_classes import watched_manager, watched_pool
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.live_policy import LivePolicy

log = logging.getLogger("vllm.cachefleet")

FEATURE: Final = "budget"
BLOCKS: Final = "blocks"
CHAINS: Final = "chains"


class NoBudgetError(Exception):
    """This vLLM, or this model, cannot have a budget; the message says why."""


class Budget:
    """The bound in force on one scheduler's idle cached blocks, and its numbers."""

    def __init__(self, watch: Watch, state: EngineState, mode: str) -> None:
        self.mode = mode
        self._watch = watch
        self._state = state

    @property
    def idle(self) -> int:
        """Number of idle cached blocks, as counted by callbacks."""
        return len(self._watch.order)

    @property
    def limit(self) -> int | None:
        """The bound in blocks; None is no bound."""
        return self._watch.order.limit

    @property
    def evicted(self) -> int:
        """Blocks evicted for the budget since the start."""
        return self._state.counts["evicted"]

    def recount(self) -> int:
        """Number of idle cached blocks, counted over all blocks of the pool."""
        return self._watch.recount()

    def apply(self, policy: LivePolicy) -> None:
        """Set the policy's bound and evict down to it at once."""
        self._watch.resize(blocks_of(policy.budget_mib, self._state.block_bytes), policy.shares)

    def reading(self) -> dict[str, Any]:
        """Fields for the stats; after a fault ``blocks_idle`` and ``budget_blocks`` are None."""
        if not self._watch.on:
            return {"blocks_idle": None, "budget_blocks": None, "evicted": self.evicted}
        by_salt = largest(self._watch.order.owners(), MAX_IDLE_SALTS)
        return {
            "blocks_idle": self.idle,
            "budget_blocks": self.limit,
            "evicted": self.evicted,
            "idle_by_salt": by_salt,
            "held_by_salt": self._held(),
        }

    def _held(self) -> dict[str, HeldBlocks]:
        """Blocks of the owners with a contract."""
        order = self._watch.order
        if not order.shares.held:
            return {}
        idle = order.owners()
        return {owner: HeldBlocks(idle.get(owner, 0), order.breaches[owner]) for owner in order.shares.held}

    def check(self) -> dict[str, Any]:
        """Fields for the audit; looks at every block."""
        return {"idle_counted": self.idle if self._watch.on else None, "idle_recounted": self.recount()}


def install(scheduler: Any, state: EngineState) -> Budget | None:
    """Watch the scheduler's block pool. None, with the reason in the capabilities, where there can be no budget."""
    state.block_bytes = block_bytes(scheduler.kv_cache_config)
    if not state.enabled(FEATURE):
        return None
    try:
        mode = _mode(scheduler.kv_cache_manager, state.block_bytes)
    except NoBudgetError as error:
        state.capabilities.add(FEATURE, OFF, str(error))
        log.warning("cachefleet: no budget for idle cached blocks: %s", error)
        return None
    budget = Budget(_watched(scheduler, state, mode), state, mode)
    state.capabilities.add(FEATURE, mode)
    state.on_policy(budget.apply)
    state.on_stats(budget.reading)
    state.on_audit(budget.check)
    return budget


def _watched(scheduler: Any, state: EngineState, mode: str) -> Watch:
    def fault(error: Exception) -> None:
        with state.faults.guard(FEATURE, FLUSH_FEATURE):
            raise error

    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    watch: Watch
    if mode == BLOCKS:
        watch = BlockWatch(pool, state.counts, fault)
    else:
        watch = ChainWatch(pool, state.counts, fault, cached_groups(scheduler.kv_cache_config))
        watch.attach(manager, watched_manager)
    watch.attach(pool, watched_pool)
    return watch


def _mode(manager: Any, bytes_of_block: int) -> str:
    """How blocks are chosen for this model. UnsupportedError."""
    from vllm.v1.core.block_pool import BlockPool  # noqa: PLC0415 - vLLM is there when this runs
    from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: PLC0415

    pool = manager.block_pool
    if not bytes_of_block:
        raise NoBudgetError("the model has no KV cache")
    if not pool.enable_caching:
        raise NoBudgetError("prefix caching is off")
    if type(pool) is not BlockPool:
        raise NoBudgetError(f"unknown block pool {type(pool).__name__}")
    _require(pool, (*POOL_METHODS, *POOL_INTERNALS))
    _require(pool.free_block_queue, QUEUE_METHODS)
    groups = manager.coordinator.single_type_managers
    if any(group.block_pool is not pool for group in groups):
        raise NoBudgetError("several block pools")
    if len(groups) == 1 and type(groups[0]).__name__ == "FullAttentionManager":
        return BLOCKS
    if type(manager) is not KVCacheManager:
        raise NoBudgetError(f"unknown KV cache manager {type(manager).__name__}")
    _require(manager, MANAGER_METHODS)
    return CHAINS


def _require(target: Any, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not hasattr(target, name)]
    if missing:
        raise NoBudgetError(f"this vLLM's {type(target).__name__} has no {', '.join(missing)}")
