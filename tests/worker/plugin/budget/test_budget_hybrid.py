"""The budget on vLLM's real block pool, for models whose hits need several KV cache groups."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.worker.plugin import loaded
from tests.worker.plugin.loaded import BLOCK, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

HYBRIDS = [("full", "sliding"), ("full", "sliding", "sliding"), ("full", "mamba"), ("sliding",)]
Engine = Any


@pytest.fixture(params=HYBRIDS, ids="+".join)
def engine(request: pytest.FixtureRequest) -> Engine:
    return loaded.engine(*request.param, blocks=400)


def test_the_mode_is_chains(engine: Engine) -> None:
    assert engine.state.capabilities.mode("budget") == "chains"


def test_chains_that_stay_keep_their_whole_hit_and_others_lose_it_oldest_first(engine: Engine) -> None:
    engine.bound(10)
    for name in range(12):
        engine.run(prompt(name, 10), list(range(9)))
        engine.check()
    hits = [engine.hit(prompt(name, 10)) // BLOCK for name in range(12)]
    assert hits[-1] == 10
    assert hits == sorted(hits)
    assert set(hits) <= {0, 10}
    assert hits[0] == 0


@pytest.mark.parametrize("engine", HYBRIDS[:3], ids="+".join, indirect=True)
def test_a_chain_over_the_whole_budget_is_not_kept_and_evicts_nothing(engine: Engine) -> None:
    engine.bound(6)
    engine.run(prompt(0, 3))
    engine.run(prompt(1, 3))
    engine.run(prompt(2, 40), chunk=3 * BLOCK)
    engine.check()
    hits = [engine.hit(prompt(name, 3)) // BLOCK for name in range(2)]
    assert hits == [3, 3]
    assert engine.hit(prompt(2, 40)) == 0


@pytest.mark.requirement("C7", "C8")
def test_a_prompt_stays_hit_when_its_answer_is_left_out_next_time(engine: Engine) -> None:
    """What a reasoning model produced is often not in its next prompt: the hit is then at the prompt's end."""
    engine.bound(20)
    for name in range(6):
        engine.run(prompt(name, 6), list(range(5 * BLOCK)))
    assert engine.hit(prompt(5, 6)) // BLOCK == 6


def test_a_shared_beginning_stays_with_the_last_to_use_it(engine: Engine) -> None:
    engine.bound(18)
    engine.run(prompt(0, 6))
    for name in range(1, 9):
        engine.run([*prompt(0, 6), *prompt(name, 4)])
        engine.check()
        assert engine.hit([*prompt(0, 6), *prompt(name, 4)]) // BLOCK == 10


def test_blocks_given_back_late_count(engine: Engine) -> None:
    engine.bound(10)
    for name in range(6):
        request = engine.start(prompt(name, 8))
        popped = engine.manager.pop_blocks_for_free(request)
        engine.check()
        engine.pool.free_blocks(reversed(popped))
        engine.check()
        assert engine.hit(prompt(name, 8)) // BLOCK == 8


def test_zero_keeps_nothing_and_none_removes_the_bound(engine: Engine) -> None:
    for name in range(3):
        engine.run(prompt(name, 8))
    engine.bound(0)
    engine.check()
    engine.run(prompt(0, 8), list(range(8)))
    assert [engine.hit(prompt(name, 8)) for name in range(3)] == [0, 0, 0]
    engine.bound(None)
    for name in range(3):
        engine.run(prompt(name, 8))
    assert [engine.hit(prompt(name, 8)) // BLOCK for name in range(3)] == [8, 8, 8]
    engine.check()


@pytest.mark.parametrize("method", ["freed", "touched", "gone", "slid", "closed", "deferred", "clear", "resize"])
def test_a_fault_switches_the_budget_off_and_leaves_vllm_as_it_is(method: str) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("broken")

    engine = loaded.engine("full", "sliding", blocks=400)
    engine.bound(10)
    engine.run(prompt(0, 6))
    setattr(engine.budget._watch.order, method, broken)
    engine.run([*prompt(0, 6), *prompt(9, 6)], list(range(20)), chunk=2 * BLOCK)
    engine.pool.free_blocks(reversed(engine.manager.pop_blocks_for_free(engine.start(prompt(1, 8)))))
    request = engine.start(prompt(2, 3))
    engine.pool.touch(blocks := engine.manager.get_blocks(request.request_id).blocks[0])
    engine.finish(request)
    engine.pool.free_blocks(blocks)
    engine.bound(2)
    engine.manager.reset_prefix_cache()
    for name in range(4):
        engine.run(prompt(name, 8))
        engine.check()
    assert [engine.hit(prompt(name, 8)) // BLOCK for name in range(4)] == [8, 8, 8, 8]
    assert engine.state.capabilities.mode("budget") == "off"
    assert engine.state.faults.counts == {"budget": 1}


class HybridTraffic(RuleBasedStateMachine):
    """Random requests over a pool that never runs short, so that only the budget evicts."""

    kinds: tuple[str, ...] = ("full", "sliding")
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.engine = loaded.engine(*self.kinds, blocks=4000)
        self.order = self.engine.budget._watch.order
        self.done: list[tuple[Any, list[int], int]] = []
        """Chains of requests that are done, in that order, their tokens, and what a repetition hit at once."""

    @rule(
        target=running,
        name=st.integers(0, 2),
        blocks=st.integers(0, 12),
        tail=st.integers(0, 2),
        extra=st.integers(1, BLOCK),
        chunk=st.sampled_from([BLOCK, 3 * BLOCK, 4096]),
    )
    def start(self, name: int, blocks: int, tail: int, extra: int, chunk: int) -> Any:
        request = self.engine.start([*prompt(name, blocks), *prompt(7 + tail, tail), *range(-extra, 0)], chunk=chunk)
        return multiple() if request is None else request

    @rule(request=running, count=st.integers(1, 4 * BLOCK))
    def grow(self, request: Any, count: int) -> None:
        if request.request_id in self.engine.manager.coordinator.single_type_managers[0].req_to_blocks:
            self.engine.grow(request, list(range(count)))

    @rule(request=consumes(running), late=st.booleans())
    def finish(self, request: Any, *, late: bool) -> None:
        before = set(self.order._kept)
        if late:
            popped = self.engine.manager.pop_blocks_for_free(request)
            self.engine.pool.free_blocks(reversed(popped))
        else:
            self.engine.finish(request)
        tokens = list(request.all_token_ids)
        for chain in set(self.order._kept) - before:
            self.done.append((chain, tokens, self.engine.hit(tokens)))

    @rule(mib=st.none() | st.integers(0, 10))
    def bound(self, mib: int | None) -> None:
        self.engine.bound(mib)
        self.stays_or_goes()

    @invariant()
    def agrees(self) -> None:
        self.engine.check()
        assert self.engine.state.faults.counts == {}
        assert sorted(self.engine.idle()) == sorted(self.order._holder)

    @invariant()
    def stays_or_goes(self) -> None:
        """A chain that was not evicted hits as much as ever; what was evicted is older than what was not."""
        kept = [(chain, tokens, hit) for chain, tokens, hit in self.done if chain in self.order._kept]
        for _, tokens, hit in kept:
            assert self.engine.hit(tokens) >= hit
        recency = {chain: at for at, (chain, _, _) in enumerate(self.done)}
        assert [recency[chain] for chain in self.order._kept] == sorted(recency[chain] for chain in self.order._kept)

    @invariant()
    def is_bounded_itself(self) -> None:
        order = self.order
        assert all(chain.size or chain.away for chain in order._kept)
        assert sum(chain.away for chain in {*order._home.values()}) == len(order._home)
        assert len(order._live) <= len(self.engine.manager.coordinator.single_type_managers[0].req_to_blocks)


class MambaTraffic(HybridTraffic):
    kinds = ("full", "mamba")


class SlidingTraffic(HybridTraffic):
    kinds = ("sliding",)


class ScarceTraffic(HybridTraffic):
    """The same where vLLM itself takes cached blocks for new ones, so that hits may shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = loaded.engine(*self.kinds, blocks=40)
        self.order = self.engine.budget._watch.order

    def stays_or_goes(self) -> None:
        """Nothing to hold: vLLM evicts in its own order."""


SETTINGS = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))

TestHybridTraffic = HybridTraffic.TestCase
TestHybridTraffic.settings = SETTINGS
TestMambaTraffic = MambaTraffic.TestCase
TestMambaTraffic.settings = SETTINGS
TestSlidingTraffic = SlidingTraffic.TestCase
TestSlidingTraffic.settings = SETTINGS
TestScarceTraffic = ScarceTraffic.TestCase
TestScarceTraffic.settings = SETTINGS
