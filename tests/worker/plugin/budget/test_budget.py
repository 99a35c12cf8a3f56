"""The budget on vLLM's real block pool, for a model with one full-attention group."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from tests.worker.plugin import loaded
from tests.worker.plugin.loaded import BLOCK, BLOCKS_PER_MIB, prompt

Engine = Any

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


@pytest.fixture
def engine() -> Engine:
    return loaded.engine("full")


def test_the_mode_is_blocks_and_the_block_bytes_are_the_models(engine: Engine) -> None:
    assert engine.state.capabilities.mode("budget") == "blocks"
    assert engine.state.block_bytes == 2**20 // BLOCKS_PER_MIB


def test_without_a_policy_nothing_is_bounded(engine: Engine) -> None:
    for name in range(5):
        engine.run(prompt(name, 8))
    assert engine.budget is not None
    assert (engine.budget.idle, engine.budget.limit, engine.budget.evicted) == (40, None, 0)
    engine.check()


@pytest.mark.requirement("C2")
def test_the_oldest_chain_goes_first_and_its_end_before_its_beginning(engine: Engine) -> None:
    engine.bound(3)
    for name in range(3):
        engine.run(prompt(name, 5))
    assert [engine.hit(prompt(name, 5)) // BLOCK for name in range(3)] == [2, 5, 5]
    engine.check()


def test_what_was_hit_last_survives(engine: Engine) -> None:
    engine.bound(3)
    engine.run(prompt(0, 6))
    engine.run(prompt(1, 6))
    engine.run([*prompt(0, 6), 1])
    engine.run(prompt(2, 6))
    assert [engine.hit(prompt(name, 6)) // BLOCK for name in range(3)] == [6, 0, 6]
    engine.check()


@pytest.mark.requirement("C2")
def test_a_chain_over_the_whole_budget_is_not_kept_and_evicts_nothing(engine: Engine) -> None:
    engine.bound(2)
    engine.run(prompt(0, 4))
    engine.run(prompt(1, 4))
    engine.run(prompt(2, 9))
    assert [engine.hit(prompt(name, 4)) // BLOCK for name in range(3)] == [4, 4, 0]
    engine.check()


def test_what_a_chain_over_the_budget_found_stays(engine: Engine) -> None:
    engine.bound(2)
    engine.run(prompt(0, 4))
    engine.run(prompt(1, 4))
    engine.run(prompt(0, 9))
    assert [engine.hit(prompt(0, 9)) // BLOCK, engine.hit(prompt(1, 4)) // BLOCK] == [4, 4]
    engine.check()


def test_what_a_chain_over_the_budget_found_bears_what_is_then_too_much(engine: Engine) -> None:
    engine.bound(2)
    engine.run(prompt(0, 4))
    large = engine.start(prompt(0, 9))
    assert large is not None
    engine.run(prompt(1, 6))
    engine.finish(large)
    assert [engine.hit(prompt(0, 9)) // BLOCK, engine.hit(prompt(1, 6)) // BLOCK] == [2, 6]
    engine.check()


def test_a_kept_chain_that_a_too_large_one_shared_stays(engine: Engine) -> None:
    engine.bound(2)
    small = engine.start(prompt(0, 4))
    large = engine.start(prompt(0, 9))
    assert small is not None
    assert large is not None
    engine.finish(small)
    engine.finish(large)
    assert engine.hit(prompt(0, 9)) // BLOCK == 4
    engine.check()


def test_evicted_blocks_are_reused_first(engine: Engine) -> None:
    engine.run(prompt(0, 4))
    engine.run(prompt(1, 4))
    old = set(engine.idle()[:4])
    engine.bound(1)
    request = engine.start(prompt(2, 4))
    assert request is not None
    assert set(engine.manager.get_block_ids(request.request_id)[0]) == old


def test_a_lower_bound_evicts_at_once_none_removes_it_and_zero_keeps_nothing(engine: Engine) -> None:
    for name in range(5):
        engine.run(prompt(name, 8))
    engine.bound(4)
    engine.check()
    assert [engine.hit(prompt(name, 8)) // BLOCK for name in range(5)] == [0, 0, 0, 8, 8]
    engine.bound(None)
    for name in range(3):
        engine.run(prompt(name, 8))
    assert [engine.hit(prompt(name, 8)) // BLOCK for name in range(5)] == [8, 8, 8, 8, 8]
    engine.bound(0)
    engine.run(prompt(0, 8))
    assert [engine.hit(prompt(name, 8)) for name in range(5)] == [0] * 5
    engine.check()
    assert engine.budget is not None
    told = {"blocks_idle": 0, "budget_blocks": 0, "evicted": engine.removed, "idle_by_salt": {}, "held_by_salt": {}}
    assert engine.budget.reading() == told
    assert engine.state.counts["evicted"] == engine.removed


def test_blocks_in_use_are_not_touched(engine: Engine) -> None:
    request = engine.start(prompt(0, 8))
    assert request is not None
    engine.bound(0)
    assert engine.hit(prompt(0, 8)) // BLOCK == 8
    engine.finish(request)
    assert engine.hit(prompt(0, 8)) == 0
    engine.check()


def test_a_reset_empties_the_count(engine: Engine) -> None:
    engine.bound(4)
    engine.run(prompt(0, 8))
    assert engine.manager.reset_prefix_cache()
    assert engine.budget is not None
    assert engine.budget.idle == 0
    engine.run(prompt(1, 8))
    engine.check()


def test_invalidated_idle_blocks_are_not_counted(engine: Engine) -> None:
    engine.run(prompt(0, 8))
    engine.manager.evict_blocks({engine.idle()[0]})
    engine.check()


def test_a_freed_block_that_is_still_read_is_reused_last_even_when_evicted(engine: Engine) -> None:
    if not hasattr(engine.pool, "unpin_blocks"):
        pytest.skip("vLLM has this since 0.30")
    request = engine.start(prompt(0, 4))
    blocks = engine.manager.get_blocks(request.request_id).blocks[0]
    engine.pool.touch(blocks)
    engine.finish(request)
    engine.pool.unpin_blocks(blocks, lambda _: None)
    engine.check()
    assert engine.budget.idle == 4
    engine.bound(0)
    engine.check()
    assert engine.pool.free_block_queue.get_all_free_blocks()[-4:] == list(blocks)


@pytest.mark.parametrize("method", ["freed", "touched", "gone", "clear", "resize"])
def test_a_fault_switches_the_budget_off_and_leaves_vllm_as_it_is(engine: Engine, method: str, caplog: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ValueError("broken")

    engine.bound(3)
    engine.run(prompt(0, 6))
    assert engine.budget is not None
    setattr(engine.budget._watch.order, method, broken)
    engine.run([*prompt(0, 6), 1])
    engine.bound(2)
    engine.manager.reset_prefix_cache()
    for name in range(4):
        engine.run(prompt(name, 8))
        engine.check()
    assert [engine.hit(prompt(name, 8)) // BLOCK for name in range(4)] == [8, 8, 8, 8]
    assert engine.state.capabilities.mode("budget") == "off"
    assert engine.state.capabilities.document()[0].reason == "fault: ValueError"
    assert engine.state.faults.counts == {"budget": 1}
    assert len([record for record in caplog.records if "budget failed" in record.message]) <= 1
    assert engine.budget.reading() == {"blocks_idle": None, "budget_blocks": None, "evicted": 0}


def test_without_prefix_caching_there_is_no_budget() -> None:
    engine = loaded.engine("full", caching=False)
    assert engine.budget is None
    assert engine.state.capabilities.document()[0].reason == "prefix caching is off"


class Traffic(RuleBasedStateMachine):
    """Random requests with shared beginnings; a list stands for the order of idle blocks."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.engine = loaded.engine("full", blocks=24)
        self.idle: list[int] = []
        """The model: idle cached blocks, the next victim first."""
        self.hashes: dict[int, Any] = {}
        """Of the idle blocks and those with standing."""
        self.standing: set[int] = set()
        self.limit: int | None = None

    @rule(target=running, name=st.integers(0, 3), blocks=st.integers(0, 9), extra=st.integers(1, BLOCK))
    def start(self, name: int, blocks: int, extra: int) -> Any:
        tokens = [*prompt(name, blocks), *range(-extra, 0)]
        request = self.engine.start(tokens)
        self._use()
        return multiple() if request is None else request

    @rule(request=running, count=st.integers(1, 3 * BLOCK))
    def grow(self, request: Any, count: int) -> None:
        if request.request_id in self.engine.manager.coordinator.single_type_managers[0].req_to_blocks:
            self.engine.grow(request, list(range(count)))
            self._use()

    @rule(request=consumes(running), late=st.booleans())
    def finish(self, request: Any, *, late: bool) -> None:
        blocks = self.engine.manager.get_blocks(request.request_id).blocks[0]
        chain = [block for block in reversed(blocks) if block.block_hash is not None]
        idle = [block.block_id for block in chain if block.ref_cnt == 1]
        shared = {block.block_id for block in chain if block.ref_cnt > 1}
        if late:
            popped = self.engine.manager.pop_blocks_for_free(request)
            self.engine.pool.free_blocks(reversed(popped))
        else:
            self.engine.finish(request)
        if self.limit is not None and len(chain) > self.limit:
            idle = [block for block in idle if block in self.standing]
            idle = idle[max(0, len(self.idle) + len(idle) - self.limit) :]
        else:
            self.standing |= shared
        self.idle += idle
        self._bound()

    @rule(mib=st.none() | st.integers(0, 5))
    def bound(self, mib: int | None) -> None:
        self.limit = None if mib is None else mib * BLOCKS_PER_MIB
        self.engine.bound(mib)
        self._bound()

    @rule()
    def reset(self) -> None:
        if self.engine.manager.reset_prefix_cache():
            self.idle = []
            self.standing = set()

    @invariant()
    def agrees(self) -> None:
        self.engine.check()
        assert self.engine.state.faults.counts == {}
        assert self.engine.idle() == self.idle
        assert list(self.engine.budget._watch.order._idle) == self.idle

    def _use(self) -> None:
        """Idle blocks that are in use now, or were taken for something else, are idle no longer."""
        blocks = self.engine.pool.blocks
        for number in self.idle:
            if blocks[number].ref_cnt and blocks[number].block_hash == self.hashes[number]:
                self.standing.add(number)
        self.idle = [number for number in self.idle if not blocks[number].ref_cnt and blocks[number].block_hash]

    def _bound(self) -> None:
        if self.limit is not None:
            self.idle = self.idle[max(0, len(self.idle) - self.limit) :]
        blocks = self.engine.pool.blocks
        self.standing = {
            number
            for number in self.standing - set(self.idle)
            if blocks[number].ref_cnt
            and self.hashes.get(number, blocks[number].block_hash) == blocks[number].block_hash
        }
        self.hashes = {number: blocks[number].block_hash for number in (*self.idle, *self.standing)}


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
