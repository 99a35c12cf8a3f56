"""Flushing on vLLM's real block pool: what goes, what stays, what is told of it."""

from __future__ import annotations

import random
from array import array
from typing import Any

import msgspec
import pytest

from cachefleet_core.engine.cache_flush import Flushed
from cachefleet_core.tenancy import salt_digest
from cachefleet_worker.plugin.flush import cache_flush
from cachefleet_worker.plugin.flush.selection import Beginning, Selector
from cachefleet_worker.plugin.snapshot.snapshot import outer_hash
from tests.worker.plugin.loaded import BLOCK, prompt
from tests.worker.plugin.snapshot.test_snapshot_pool import Rig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

MODELS = [("full",), ("full", "sliding"), ("full", "mamba"), ("aligned", "full"), ("sliding",), ("sliding", "wide")]
EVERYTHING = Selector()


class FlushRig(Rig):
    """A pool with the plugin's flush."""

    def __init__(self, *kinds: str, blocks: int = 256) -> None:
        super().__init__(*kinds, blocks=blocks)
        scheduler = self.engine.state.scheduler
        scheduler.block_size = BLOCK
        assert cache_flush.install(scheduler, self.engine.state) is not None

    def flush(self, selector: Selector) -> Flushed:
        answer = self.engine.state.call("flush", msgspec.msgpack.encode(selector))
        return msgspec.msgpack.decode(answer, type=Flushed)

    def flushed(self, selector: Selector) -> Flushed:
        """Flush after a dry run, which has to change nothing and foretell it."""
        before = self.engine.idle()
        foretold = self.flush(msgspec.structs.replace(selector, dry_run=True))
        assert self.engine.idle() == before
        answer = self.flush(selector)
        assert answer == foretold
        assert len(self.engine.idle()) == len(before) - answer.blocks
        return answer


def of(*salts: str) -> Selector:
    return Selector(salts=frozenset(map(salt_digest, salts)))


def begins(tokens: list[int], **more: Any) -> Selector:
    return Selector(beginnings=(Beginning(array("I", tokens).tobytes()),), **more)


@pytest.fixture(params=MODELS, ids="+".join)
def rig(request: pytest.FixtureRequest) -> FlushRig:
    return FlushRig(*request.param)


def test_everything_idle_goes_and_the_mode_says_block_by_block(rig: FlushRig) -> None:
    for name in range(3):
        rig.engine.run(prompt(name, 8), salt="ab"[name % 2])
    rig.publish()
    assert rig.flushed(EVERYTHING).blocks > 0
    assert rig.engine.idle() == []
    assert rig.engine.state.capabilities.mode("flush") == "blocks"
    assert [rig.engine.hit(prompt(name, 8), salt="ab"[name % 2]) for name in range(3)] == [0, 0, 0]
    rig.check()
    assert rig.engine.budget.idle == rig.engine.budget.recount() == 0


def test_a_tenants_blocks_go_and_anothers_hits_stay(rig: FlushRig) -> None:
    for salt in "ab":
        for name in range(3):
            rig.engine.run(prompt(name, 8), salt=salt)
    hits = [rig.engine.hit(prompt(name, 8), salt="b") for name in range(3)]
    assert min(hits) > 0
    answer = rig.flushed(of("a"))
    assert (answer.blocks > 0, answer.busy) == (True, 0)
    assert [rig.engine.hit(prompt(name, 8), salt="a") for name in range(3)] == [0, 0, 0]
    assert [rig.engine.hit(prompt(name, 8), salt="b") for name in range(3)] == hits
    assert rig.flushed(of("a")) == Flushed()
    rig.check()
    assert rig.engine.budget.idle == rig.engine.budget.recount()


def test_what_begins_with_a_prompt_goes_and_what_does_not_stays(rig: FlushRig) -> None:
    shared = prompt(0, 4)
    for tail in (1, 2):
        rig.engine.run([*shared, *prompt(tail, 5)], list(range(BLOCK)), salt="a")
    rig.engine.run([*shared, *prompt(1, 5)], salt="b")
    rig.engine.run(prompt(3, 6), salt="a")
    kept = rig.engine.hit(prompt(3, 6), salt="a")
    second = rig.engine.hit([*shared, *prompt(2, 5)], salt="a")
    assert rig.flushed(begins([*shared, *prompt(1, 1)])).blocks > 0
    assert rig.engine.hit([*shared, *prompt(2, 5)], salt="a") == second > 0
    assert rig.engine.hit([*shared, *prompt(1, 5)], salt="b") == 0
    assert rig.flushed(begins(shared)).blocks > 0
    assert rig.engine.hit([*shared, *prompt(2, 5)], salt="a") == 0
    assert rig.engine.hit(prompt(3, 6), salt="a") == kept > 0
    rig.check()


def test_blocks_in_use_stay_and_are_counted() -> None:
    rig = FlushRig("full")
    rig.engine.run(prompt(1, 3), salt="a")
    request = rig.engine.start(prompt(0, 8), salt="a")
    answer = rig.flushed(of("a"))
    assert answer == Flushed(blocks=3, tokens=3 * BLOCK, busy=8)
    assert rig.engine.hit(prompt(0, 8), salt="a") == 8 * BLOCK
    rig.engine.finish(request)
    assert rig.flushed(of("a")) == Flushed(blocks=8, tokens=8 * BLOCK)
    rig.check()


def test_it_counts_as_many_blocks_as_the_engine_announces_and_says_so_at_once() -> None:
    rig = FlushRig("full")
    for name in range(4):
        rig.engine.run(prompt(name, 5), salt="ab"[name % 2])
    rig.publish()
    before = len(rig.wire.payloads)
    answer = rig.flushed(of("a"))
    events = [event for payload in rig.wire.payloads[before:] for event in msgspec.msgpack.decode(payload)[1]]
    assert [event["type"] for event in events] == ["BlockRemoved"] * answer.blocks
    assert answer.blocks == 10
    counts = rig.engine.state.counts
    assert (counts["flushed"], counts["evicted"]) == (10, 0)


def test_copies_of_a_block_count_each_and_their_tokens_once() -> None:
    rig = FlushRig("full")
    for request in [rig.engine.start(prompt(1, 3)), rig.engine.start(prompt(1, 3))]:
        rig.engine.finish(request)
    answer = rig.flushed(begins(prompt(1, 3)))
    assert answer.tokens == 3 * BLOCK < answer.blocks * BLOCK
    rig.check()


def test_blocks_that_no_event_names_go_with_their_owner_or_their_chain() -> None:
    rig = FlushRig("full", "sliding")
    rig.engine.run(prompt(0, 8), salt="a")
    rig.engine.run(prompt(1, 8), salt="b")
    rig.publish()
    proxy, lost = rig.proxy, outer_hash(rig.engine.pool.blocks[rig.engine.idle()[0]].block_hash)[0]
    for family in proxy.ledger._families.values():
        for tier in family.tier_sets:
            tier.blocks.pop(lost, None)
    assert rig.flushed(of("a")).busy == 0
    assert rig.flushed(begins(prompt(1, 8))).busy == 0
    assert rig.engine.idle() == []


def test_a_fresh_engine_has_nothing_to_say_against_it() -> None:
    rig = FlushRig("full")
    (told,) = [one for one in rig.engine.state.capabilities.document() if one.feature == "flush"]
    assert (told.mode, told.reason) == ("blocks", "")


def test_without_a_ledger_the_mode_says_why_only_everything_can_be_flushed() -> None:
    rig = FlushRig("full")
    rig.engine.state.scheduler.kv_event_publisher = None
    assert cache_flush.install(rig.engine.state.scheduler, rig.engine.state) is not None
    (told,) = [one for one in rig.engine.state.capabilities.document() if one.feature == "flush"]
    assert (told.mode, told.reason) == ("whole", cache_flush.NO_LEDGER)


def test_without_events_only_everything_can_be_flushed() -> None:
    rig = FlushRig("full")
    rig.engine.run(prompt(0, 8), salt="a")
    rig.engine.state.faults.off("snapshot", "switched off")
    assert rig.flush(of("a")).reason == cache_flush.NO_LEDGER
    assert rig.flush(EVERYTHING) == Flushed(blocks=8, tokens=8 * BLOCK)


def test_a_fault_ends_the_feature_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = FlushRig("full")
    rig.engine.run(prompt(0, 8))
    monkeypatch.setattr(cache_flush, "outer_hash", lambda _: 1 // 0)
    assert rig.flush(of("a")).reason == cache_flush.FAULT
    assert rig.engine.state.capabilities.mode("flush") == "off"
    assert rig.engine.state.capabilities.mode("budget") == "blocks"
    assert rig.engine.hit(prompt(0, 8)) == 8 * BLOCK
    monkeypatch.undo()
    assert rig.flush(EVERYTHING).reason == cache_flush.FAULT


def test_a_fault_of_the_budget_ends_it_too() -> None:
    rig = FlushRig("full")
    rig.engine.run(prompt(0, 8))
    rig.engine.budget._watch.order.gone = lambda _: 1 // 0
    assert rig.flush(EVERYTHING) == Flushed(tokens=8 * BLOCK, reason=cache_flush.FAULT)
    assert {rig.engine.state.capabilities.mode(name) for name in ("flush", "budget")} == {"off"}
    assert rig.engine.hit(prompt(0, 8)) == 8 * BLOCK


@pytest.mark.parametrize("kinds", MODELS[:3], ids="+".join)
@pytest.mark.parametrize("seed", range(2))
def test_under_random_load_nothing_meant_is_left_and_nothing_else_goes(kinds: tuple[str, ...], seed: int) -> None:
    chance = random.Random(seed)
    rig = FlushRig(*kinds, blocks=96)
    running: list[Any] = []
    for step in range(80):
        turn = chance.random()
        if turn < 0.5:
            tokens = [*prompt(0, chance.randrange(3)), *prompt(chance.randrange(1, 5), chance.randrange(1, 8))]
            request = rig.engine.start(tokens, salt=chance.choice("ab"), chunk=chance.choice([8, 4096]))
            running += [] if request is None else [request]
        elif turn < 0.8 and running:
            rig.engine.finish(running.pop(chance.randrange(len(running))))
        elif turn < 0.85:
            rig.engine.bound(chance.choice([None, 4, 16]))
        else:
            _flush_and_compare(rig, chance)
        rig.publish()
        if step % 5 == 0:
            rig.check()
    for request in running:
        rig.engine.finish(request)
    rig.flushed(EVERYTHING)
    assert rig.engine.idle() == []
    rig.check()


def _flush_and_compare(rig: FlushRig, chance: random.Random) -> None:
    salt, other = chance.choice([("a", "b"), ("b", "a")])
    named = prompt(chance.randrange(1, 5), chance.randrange(1, 4))
    selector = chance.choice([of(salt), begins(named), begins(named, salts=of(salt).salts)])
    asked = [(prompt(name, 7), each) for name in range(1, 5) for each in "ab"]
    before = [rig.engine.hit(tokens, salt=each) for tokens, each in asked]
    rig.flushed(selector)
    assert rig.flush(selector).blocks == 0
    for (tokens, each), hit in zip(asked, before, strict=True):
        spared = (selector.salts is not None and each == other) or (
            selector.beginnings is not None and tokens[: len(named)] != named
        )
        assert not spared or rig.engine.hit(tokens, salt=each) == hit
    assert rig.engine.budget.idle == rig.engine.budget.recount()
    assert rig.engine.state.faults.counts == {}
