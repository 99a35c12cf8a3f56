"""The ledger, the held-back removals and the snapshot against vLLM's real block pool under random load."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.plugin.snapshot.event_batches import batches
from cachefleet_worker.plugin.snapshot.snapshot import Snapshots, install, pool_hashes
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.plugin.loaded import BLOCK, engine, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]  # importing vLLM on a busy machine takes a minute


class Wire:
    """vLLM's publisher's end: what is encoded there reaches an agent, whose set is kept."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK)

    def publish(self, batch: Any) -> None:
        batch.data_parallel_rank = 0
        self.payloads.append(msgspec.msgpack.encode(batch))
        self.residents.apply(decode_batch(self.payloads[-1]).events)


class Rig:
    """One real pool behind the plugin."""

    def __init__(self, *kinds: str, blocks: int = 64) -> None:
        self.engine = engine(*kinds, blocks=blocks)
        self.wire = Wire()
        scheduler = self.engine.state.scheduler
        scheduler.kv_event_publisher = self.wire
        object.__setattr__(self.engine.state.settings, "heartbeat_seconds", 1e6)
        snapshots = install(scheduler, self.engine.state)
        assert snapshots is not None
        self.snapshots: Snapshots = snapshots

    @property
    def proxy(self) -> Any:
        return self.engine.state.scheduler.kv_event_publisher

    def publish(self) -> None:
        """What the engine does at the end of a step."""
        self.engine.state.publish_events()

    def check(self) -> None:
        """Ledger, agent and a snapshot just taken all have what the pool's table has, block by block."""
        table = pool_hashes(self.engine.pool)
        audit = self.snapshots.audit()
        assert (audit["ledger_missing"], audit["ledger_extra"], audit["blocks_cached"]) == (0, 0, len(table))
        assert audit["sequence"] == len(self.wire.payloads) - 1
        point = self.proxy.point()
        assert self.wire.residents.agrees(point.totals)
        draft = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK)
        for payload in batches(point.copies, rank=0, now=0.0):
            draft.apply(decode_batch(payload).events)
        assert draft.agrees(point.totals)
        assert reported(draft) == reported(self.wire.residents)
        assert self.engine.state.faults.counts == {}


def keys(tokens: list[int]) -> set[int]:
    return set(BlockKeyer(INDEX_KEY, Namespace(CONTRACT), BLOCK).keys(tokens))


def reported(residents: Residents) -> dict[Any, int]:
    """Key of each hash that full attention holds. What only a window holds may have no name after a snapshot."""
    return {each: block.key for each, block in residents._names.live.items() if block.claims & 1}


def held(rig: Rig) -> set[int]:
    return set(reported(rig.wire.residents).values())


def twice(rig: Rig) -> list[Any]:
    """Physical blocks that are copies of each other."""
    cached = [block for block in rig.engine.pool.blocks if block.block_hash is not None]
    return [block for block in cached if sum(other.block_hash == block.block_hash for other in cached) > 1]


def test_a_prompt_is_held_under_its_keys() -> None:
    rig = Rig("full")
    rig.engine.run(prompt(1, 5))
    rig.check()
    assert held(rig) == keys(prompt(1, 5))


def test_the_removal_of_one_of_two_copies_is_held_back() -> None:
    """The last block of a prompt is always computed again, so that a prompt run twice has it twice."""
    rig = Rig("full")
    first, second = rig.engine.start(prompt(1, 3)), rig.engine.start(prompt(1, 3))
    rig.check()
    copies = twice(rig)
    assert len(copies) == 2
    rig.engine.finish(first)
    rig.engine.finish(second)
    before = len(rig.wire.payloads)
    rig.engine.pool.evict_blocks({copies[0].block_id})
    rig.check()
    assert len(rig.wire.payloads) == before
    assert rig.proxy.held_back == 1
    assert held(rig) == keys(prompt(1, 3))
    rig.engine.pool.evict_blocks({copies[1].block_id})
    rig.check()
    assert held(rig) == keys(prompt(1, 2))


def test_stock_events_would_have_withdrawn_it() -> None:
    """What the hold-back is for: without it the first removal says the block is gone."""
    rig = Rig("full")
    rig.proxy._copies = None
    for request in [rig.engine.start(prompt(1, 3)), rig.engine.start(prompt(1, 3))]:
        rig.engine.finish(request)
    rig.engine.pool.evict_blocks({twice(rig)[0].block_id})
    rig.publish()
    assert held(rig) == keys(prompt(1, 2))


def test_a_reset_is_published_with_what_came_before_it() -> None:
    rig = Rig("full")
    rig.engine.run(prompt(1, 5))
    rig.publish()
    assert rig.engine.pool.reset_prefix_cache()
    rig.check()
    assert held(rig) == set()


def test_a_budget_takes_copies_of_its_own_and_the_stream_stays_exact() -> None:
    rig = Rig("full")
    for name in range(6):
        rig.engine.run(prompt(name % 3, 6))
        rig.check()
    rig.engine.bound(1)
    rig.check()
    assert 0 < len(held(rig)) <= 4
    rig.engine.bound(0)
    rig.check()
    assert held(rig) == set()


@pytest.mark.parametrize("kinds", [("full",), ("full", "sliding"), ("full", "mamba"), ("sliding", "full")])
@pytest.mark.parametrize("seed", range(3))
def test_under_random_load_all_agree_at_every_step(kinds: tuple[str, ...], seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(*kinds, blocks=96)
    running: list[tuple[Any, int]] = []
    for step in range(150):
        turn = chance.random()
        if turn < 0.45:
            request = rig.engine.start(
                prompt(chance.randrange(8), chance.randrange(1, 12)), chunk=chance.choice([8, 4096])
            )
            running += [(request, step)] if request is not None else []
        elif turn < 0.75 and running:
            rig.engine.grow(running[0][0], [chance.randrange(3) for _ in range(chance.randrange(1, 9))])
        elif turn < 0.95 and running:
            rig.engine.finish(running.pop(chance.randrange(len(running)))[0])
        elif turn < 0.97:
            rig.engine.bound(chance.choice([None, 4, 8, 16]))
        elif not running:
            rig.engine.pool.reset_prefix_cache()
        rig.publish()
        if step % 5 == 0:
            rig.check()
    rig.check()
    assert rig.proxy.held_back > 0
    assert len(rig.wire.payloads) > 20


def test_events_of_bytes_are_as_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES", "0")
    rig = Rig("full")
    for name in (1, 1, 2):
        rig.engine.run(prompt(name, 4))
    rig.check()
    assert all(isinstance(block_hash, bytes) for block_hash in rig.wire.residents._names.live)
    for block in rig.engine.pool.blocks:
        rig.engine.pool.evict_blocks({block.block_id})
        rig.check()
    assert held(rig) == set()


def test_the_pool_keeps_its_own_ways_for_who_asks_it() -> None:
    rig = Rig("full")
    rig.engine.run(prompt(1, 2))
    rig.engine.pool.evict_blocks({block.block_id for block in rig.engine.pool.blocks})
    [stored, first, second] = rig.engine.manager.take_events()
    assert type(stored).__name__ == "BlockStored"
    assert type(first).__name__ == type(second).__name__ == "BlockRemoved"
