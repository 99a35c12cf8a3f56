"""Finds cached blocks in vLLM's block pool that a selector means, and evicts those that no request uses.

Eviction is the budget's (budget/block_pool.py), block by block, so that vLLM tells its subscribers of each; which
blocks are meant is read off the ledger of published events. It runs on the engine's thread, between two steps: some
microseconds for each cached block, and as many again for each that goes.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any, Final

import msgspec

from cachefleet_core.engine.cache_flush import FLUSH_FEATURE, FLUSH_WHOLE, Flushed
from cachefleet_worker.plugin.budget.block_pool import WATCH, Watch
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.flush.selection import Named, Selector, meant
from cachefleet_worker.plugin.snapshot.publisher_proxy import SNAPSHOT
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger
from cachefleet_worker.plugin.snapshot.snapshot import outer_hash

log = logging.getLogger("vllm.cachefleet")

MODE: Final = "blocks"
NO_BUDGET: Final = "the budget, which evicts blocks, is off"
NO_LEDGER: Final = "without block events nobody can tell whose a block is: only everything can be flushed"
FAULT: Final = "off after a fault, until the engine restarts"

Cached = dict[int, Any]
"""Cached blocks by number, with vLLM's hash of each, which has its KV cache group."""


class CacheFlush:
    """Answers the call ``flush`` of one engine."""

    def __init__(self, state: EngineState, watch: Watch, ledger: ResidentLedger | None) -> None:
        self._state = state
        self._watch = watch
        self._ledger = ledger

    def call(self, payload: bytes) -> bytes:
        """The call: a Selector in, a Flushed out."""
        answer = Flushed(reason=FAULT)
        with self._state.faults.guard(FLUSH_FEATURE):
            answer = self._flush(msgspec.msgpack.decode(payload, type=Selector))
        return msgspec.msgpack.encode(answer)

    def stats(self) -> dict[str, Any]:
        """Fields for the stats."""
        return {"flushed": self._state.counts["flushed"]}

    def _flush(self, selector: Selector) -> Flushed:
        if reason := self._why_not(selector):
            return Flushed(reason=reason)
        self._state.publish_events()  # so that the ledger has all that is cached
        cached = self._cached()
        found = set(cached) if selector.everything else self._found(cached, selector)
        idle = [number for number in found if not self._pool.blocks[number].ref_cnt]
        tokens, busy = self._tokens({cached[number] for number in idle}), len(found) - len(idle)
        if selector.dry_run:
            return Flushed(len(idle), tokens, busy)
        before = self._state.counts["flushed"]
        self._watch.flush(idle)
        evicted = self._state.counts["flushed"] - before
        log.info("cachefleet: %d idle cached blocks flushed", evicted)
        return Flushed(evicted, tokens, busy, "" if self._watch.on else FAULT)

    def _why_not(self, selector: Selector) -> str:
        faults = self._state.faults
        if not self._watch.on or not faults.on(FLUSH_FEATURE):
            return FAULT
        told = self._ledger is not None and faults.on(SNAPSHOT)
        return "" if told or selector.everything else NO_LEDGER

    @property
    def _pool(self) -> Any:
        return self._state.scheduler.kv_cache_manager.block_pool

    def _cached(self) -> Cached:
        blocks = self._pool.blocks
        return {block.block_id: block.block_hash for block in blocks if block.block_hash is not None}

    def _found(self, cached: Cached, selector: Selector) -> set[int]:
        named: Named = self._ledger.named() if self._ledger is not None else {}
        names = {number: outer_hash(block_hash)[0] for number, block_hash in cached.items()}
        wanted = meant(named, set(names.values()), selector)
        found = {number for number, name in names.items() if name in wanted}
        unnamed = {number for number, name in names.items() if name not in named}
        return found | self._guessed(unnamed, found, selector) if unnamed else found

    def _guessed(self, unnamed: set[int], found: set[int], selector: Selector) -> set[int]:
        """Blocks of which no event tells the tokens: by owner, or because they are kept beside what was found."""
        order = self._watch.order
        if selector.adapter is None and selector.beginnings is None:
            return {number for number in unnamed if order.owner_of(number) in (selector.salts or ())}
        return unnamed & order.beside(found)

    def _tokens(self, hashes: set[Any]) -> int:
        """Tokens of distinct blocks, in the group that has most."""
        from vllm.v1.core.kv_cache_utils import get_group_id  # noqa: PLC0415 - vLLM is there when this runs

        sizes = {group.index: group.block_size for group in self._state.groups}
        whole = int(self._state.scheduler.block_size)
        counts = Counter(map(get_group_id, hashes))
        return max((count * sizes.get(group, whole) for group, count in counts.items()), default=0)


def install(scheduler: Any, state: EngineState) -> CacheFlush | None:
    """Answer the call, where the budget watches the pool. None, with the reason in the capabilities, elsewhere."""
    if not state.enabled(FLUSH_FEATURE):
        return None
    watch = getattr(scheduler.kv_cache_manager.block_pool, WATCH, None)
    if watch is None:
        state.capabilities.add(FLUSH_FEATURE, OFF, NO_BUDGET)
        return None
    ledger = getattr(scheduler.kv_event_publisher, "ledger", None)
    flush = CacheFlush(state, watch, ledger)
    state.calls["flush"] = flush.call
    state.on_stats(flush.stats)
    mode, reason = (FLUSH_WHOLE, NO_LEDGER) if ledger is None else (MODE, "")  # a ledger is empty at the start
    state.capabilities.add(FLUSH_FEATURE, mode, reason)
    return flush
