"""The rule of hits, and what agent and index make of the events, held to vLLM's real KV cache manager."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from cachefleet_controlplane.index.block_index import BlockIndex
from cachefleet_controlplane.index.worker_id import worker_id
from cachefleet_core.block_keys import BlockKeyer, Namespace
from cachefleet_core.hit_rule import CacheGroup, hit_blocks, membership
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.plugin.snapshot.cache_groups import cache_groups, hash_lookahead
from cachefleet_worker.plugin.snapshot.event_batches import batches
from cachefleet_worker.plugin.snapshot.snapshot import install, pool_hashes
from tests.worker.agent.model import CONTRACT, INDEX_KEY
from tests.worker.plugin.loaded import BLOCK, engine

STEPS = 500 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 100
W = worker_id("ns/p", "w")

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MODELS = [
    ("full",),
    ("full", "full"),
    ("sliding",),
    ("wide",),
    ("sliding", "wide"),
    ("full", "sliding"),
    ("sliding", "full"),
    ("sliding", "sliding", "full"),
    ("full", "wide", "sliding"),
    ("full", "mamba"),
    ("mamba", "full", "wide"),
    ("aligned", "full"),
]


LOOKAHEADS = [0, 1, 3]
"""Tokens after a block that its hash covers: with a draft model, from vLLM 0.33 on."""


class Conversations:
    """A random history: prompts that go on, fork, step back; answers; a small pool, now and then under a budget."""

    def __init__(self, made: Any, seed: int) -> None:
        self.engine = made
        self.chance = random.Random(seed)
        self.known: list[list[int]] = [[]]
        self._running: list[Any] = []

    def prompt(self) -> list[int]:
        """A prompt that shares a random part with one before."""
        before = self.chance.choice(self.known)
        kept = before if self.chance.random() < 0.6 else before[: self.chance.randrange(len(before) + 1)]
        fresh = [self.chance.randrange(3) for _ in range(self.chance.randrange(1, 3 * BLOCK + 2))]
        return ([*kept, *fresh])[: 16 * BLOCK]

    def turn(self) -> None:
        turn = self.chance.random()
        if turn < 0.55:
            self._start()
        elif turn < 0.9 and self._running:
            self._finish(self._running.pop(self.chance.randrange(len(self._running))))
        elif turn < 0.95:
            self.engine.bound(self.chance.choice([None, None, 4, 8]))
        elif turn < 0.96 and not self._running:
            self.engine.pool.reset_prefix_cache()

    def _start(self) -> None:
        request = self.engine.start(self.prompt(), chunk=self.chance.choice([BLOCK, 3 * BLOCK, 4096]))
        if request is None:
            return
        answer = [self.chance.randrange(3) for _ in range(self.chance.randrange(4 * BLOCK))]
        if not self.engine.grow(request, answer):
            self.engine.finish(request)
            return
        self.known = [*self.known[-12:], list(request.all_token_ids)]
        self._running.append(request)

    def _finish(self, request: Any) -> None:
        self.engine.finish(request)


def groups(made: Any) -> list[CacheGroup]:
    """The groups, as the plugin describes them."""
    return cache_groups(made.manager)


def from_table(made: Any, tokens: list[int]) -> int:
    """The hit on a prompt by the rule alone, from the pool's own table."""
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash  # noqa: PLC0415

    hashes = [maybe_convert_block_hash(each) for each in made.request(tokens).block_hashes]
    table, parts = pool_hashes(made.pool), membership(groups(made), BLOCK)
    windows = dict(parts.windows)

    def held(needed: frozenset[int], block: int) -> bool:
        return all((group, hashes[block]) in table for group in needed)

    most = min(len(hashes), (len(tokens) - 1) // BLOCK)
    blocks = next((at for at in range(most) if not held(parts.full, at)), most)
    return hit_blocks(parts.rule, blocks, lambda window, block: held(windows[window], block)) * BLOCK


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("retention", [None, 0, 4 * BLOCK])
@pytest.mark.parametrize("kinds", MODELS, ids="+".join)
def test_the_rule_is_vllms(kinds: tuple[str, ...], retention: int | None, lookahead: int) -> None:
    if retention and not set(kinds) & {"sliding", "wide", "mamba", "aligned"}:
        pytest.skip("vLLM refuses it")
    made = engine(*kinds, blocks=72 * len(kinds), retention=retention, lookahead=lookahead)
    history = Conversations(made, seed=len(kinds) + (retention or 0))
    hits = 0
    for _ in range(STEPS):
        history.turn()
        prompt = history.prompt()
        served = int(made.manager.get_computed_blocks(made.request(prompt))[1])
        assert from_table(made, prompt) == served
        hits += served > 0
    assert hits >= STEPS // 10


class Route:
    """The way of events from a pool behind the plugin to an index, and predictions out of it."""

    def __init__(self, made: Any, *, plugin: bool = True) -> None:
        self.made = made
        told = groups(made) if plugin else ()
        self.lookahead = hash_lookahead(made.pool)
        self.residents = self.fresh(told)
        self.index = BlockIndex()
        self.point: Any = None
        scheduler = made.state.scheduler
        scheduler.kv_event_publisher = self
        if plugin:
            object.__setattr__(made.state.settings, "heartbeat_seconds", 1e6)
            snapshots = install(scheduler, made.state)
            assert snapshots is not None
            self.point = scheduler.kv_event_publisher.point

    def fresh(self, told: Iterable[CacheGroup]) -> Residents:
        """What an agent holds that has seen nothing yet."""
        return Residents(INDEX_KEY, CONTRACT, block_size=BLOCK, lookahead=self.lookahead, groups=told)

    def publish(self, batch: Any) -> None:
        """What leaves the engine; the publisher's end."""
        batch.data_parallel_rank = 0
        self.residents.apply(decode_batch(msgspec.msgpack.encode(batch)).events)
        for operation in self.residents.take():
            self.index.apply(W, operation)

    def predicted(self, tokens: list[int]) -> int:
        """What a decision would predict."""
        self.made.state.publish_events()
        return predicted(self.index, self.residents, tokens, lookahead=self.lookahead)

    def from_snapshot(self) -> tuple[BlockIndex, Residents]:
        """What an agent that comes now makes of a snapshot, and its index."""
        point = self.point()
        fresh = self.fresh(groups(self.made))
        for payload in batches(point.copies, rank=0, now=0.0):
            fresh.apply(decode_batch(payload).events)
        assert self.residents.agrees(point.totals)
        assert fresh.agrees(point.totals)
        index = BlockIndex()
        for operation in fresh.snapshot():
            index.apply(W, operation)
        return index, fresh


def predicted(index: BlockIndex, residents: Residents, tokens: list[int], *, lookahead: int) -> int:
    keys = BlockKeyer(INDEX_KEY, Namespace(CONTRACT), BLOCK, lookahead).keys(tokens)
    usable = (len(tokens) - 1) // BLOCK
    return min(usable, index.match(keys, [W], rules=[residents.rule], usable=usable)[0]) * BLOCK


@pytest.mark.parametrize("lookahead", LOOKAHEADS)
@pytest.mark.parametrize("retention", [None, 0])
@pytest.mark.parametrize("kinds", MODELS, ids="+".join)
def test_agent_and_index_predict_what_vllm_serves(
    kinds: tuple[str, ...], retention: int | None, lookahead: int
) -> None:
    made = engine(*kinds, blocks=72 * len(kinds), retention=retention, lookahead=lookahead)
    route, history = Route(made), Conversations(made, seed=17 + len(kinds))
    hits = 0
    for step in range(STEPS):
        history.turn()
        prompt = history.prompt()
        served = int(made.manager.get_computed_blocks(made.request(prompt))[1])
        assert route.predicted(prompt) == served
        hits += served > 0
        if step % 25 == 0:
            assert route.index.digest(W) == route.residents.digest
            index, fresh = route.from_snapshot()
            assert index.digest(W) == fresh.digest
        assert predicted(index, fresh, prompt, lookahead=lookahead) == served or step % 25
    assert hits > STEPS // 10
    assert not made.state.faults.counts
    assert not route.residents.counts["lookahead"]


@pytest.mark.parametrize("kinds", [("full",), ("full", "full"), ("full", "sliding")], ids="+".join)
def test_the_last_block_of_a_hit_is_not_predicted_where_a_draft_model_has_it_computed_again(
    kinds: tuple[str, ...],
) -> None:
    made = engine(*kinds, blocks=72 * len(kinds))
    coordinator = made.manager.coordinator
    for name in ("eagle_group_ids", "drop_eagle_group_ids"):  # the second one is 0.33's
        if hasattr(coordinator, name):
            setattr(coordinator, name, set(range(len(kinds))))
    route, history = Route(made), Conversations(made, seed=5)
    exact = 0
    for _ in range(STEPS):
        history.turn()
        prompt = history.prompt()
        served = int(made.manager.get_computed_blocks(made.request(prompt))[1])
        predicted = route.predicted(prompt)
        assert predicted == (served if len(kinds) == 1 else 0)
        exact += served > 0
    assert exact > STEPS // 10
    assert bool(route.residents.unknown) == (len(kinds) > 1)


@pytest.mark.parametrize("lookahead", LOOKAHEADS[:2])
@pytest.mark.parametrize("kinds", [each for each in MODELS if "full" in each], ids="+".join)
def test_a_stock_engines_groups_are_learnt_from_its_events(kinds: tuple[str, ...], lookahead: int) -> None:
    """A removal of one of two copies is announced too, so less may be predicted; never more."""
    made = engine(*kinds, blocks=72 * len(kinds), retention=0, lookahead=lookahead)
    route, history = Route(made, plugin=False), Conversations(made, seed=3)
    exact = 0
    for _ in range(STEPS):
        history.turn()
        prompt = history.prompt()
        served = int(made.manager.get_computed_blocks(made.request(prompt))[1])
        predicted = route.predicted(prompt)
        assert predicted <= served
        exact += predicted == served > 0
    assert exact > STEPS // 10
    assert route.residents.rule == membership(groups(made), BLOCK).rule
