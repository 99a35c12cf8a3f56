"""Decisions by text: who was sent something is expected to hold it while it lives, and an estimate refuses nobody."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.block_index import BlockIndex, IndexDefectError
from cachefleet_controlplane.routing.decision import Chunks, Decision, Knowledge, Prompt, Reason, Verdict
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.chains import chain
from tests.controlplane.fleets import INDEX_KEY, MODEL, LiveFleet, fleet_of, pool, view
from tests.controlplane.frames import state
from tests.controlplane.selection.calls import counted_calls


class TextFleet(LiveFleet):
    """Also decides by text."""

    def __init__(self, *workers: str, texts: BlockIndex | None = None, report: bool = True) -> None:
        self.now = 1000.0
        self.index = BlockIndex()
        texts = texts or BlockIndex()
        Fleet.__init__(self, self.index, index_key=INDEX_KEY, texts=texts, clock=lambda: self.now, wall=lambda: 1.7e9)
        self.update_pools([view(pool(), workers)])
        self.links = {worker: self.report(worker) for worker in workers if report}

    def serve(self, prompt: Prompt) -> Decision:
        decision = self.route(MODEL, prompt)
        with self.begin(decision, prompt):
            self.now += 0.1
        return decision


def prompt(seed: int = 1, chunks: int = 10, **changes: Any) -> Prompt:
    """Chunks of 128 tokens each, which are eight blocks."""
    fields: dict[str, Any] = {
        "tokens": 128 * chunks,
        "block_size": 16,
        "knowledge": Knowledge.APPROXIMATE,
        "chunks": Chunks(pack_keys(chain(seed, chunks)), 128.0),
    }
    return Prompt(**fields | changes)


def test_turns_of_a_conversation_go_where_it_began() -> None:
    fleet = TextFleet("a", "b", "c")
    first = fleet.serve(prompt())
    assert (first.knowledge, first.reason, first.predicted_tokens) == (Knowledge.APPROXIMATE, Reason.COLD, 0)
    for seed in (2, 3):
        assert fleet.serve(prompt(seed)).worker != first.worker
    longer = prompt(chunks=12)
    again = fleet.serve(longer)
    assert (again.worker, again.reason, again.knowledge) == (
        first.worker,
        Reason.LONGEST_PREFIX,
        Knowledge.APPROXIMATE,
    )
    assert again.predicted_tokens == 10 * 128
    assert {score.matched_blocks for score in again.scores} == {80, 0}


def test_exact_decisions_teach_it_too() -> None:
    fleet = TextFleet("a", "b")
    keys = pack_keys(chain(9, 80))
    exact = fleet.serve(prompt(keys=keys, knowledge=Knowledge.EXACT))
    assert exact.knowledge is Knowledge.EXACT
    fleet.serve(prompt(2))
    assert fleet.route(MODEL, prompt()).worker == exact.worker


def test_a_decision_alone_teaches_nothing() -> None:
    fleet = TextFleet("a", "b")
    fleet.route(MODEL, prompt())
    assert fleet.route(MODEL, prompt()).reason is Reason.COLD


def test_another_epoch_of_a_worker_begins_with_nothing() -> None:
    fleet = TextFleet("a")
    fleet.serve(prompt())
    assert fleet.route(MODEL, prompt()).predicted_tokens > 0
    fleet.report("a", epoch="e2")
    assert fleet.route(MODEL, prompt()).predicted_tokens == 0


def test_workers_that_are_gone_are_forgotten() -> None:
    texts = BlockIndex()
    fleet = TextFleet("a", "b", texts=texts)
    gone = fleet.serve(prompt()).id
    assert texts.stats().held[gone] == 10
    fleet.update_pools([view(pool(), [])])
    fleet.now += 60
    fleet.expire()
    fleet.update_pools([view(pool(), [])])
    assert texts.stats().held.get(gone, 0) == 0


def test_no_more_is_expected_than_a_cache_has_room_for() -> None:
    fleet = TextFleet("a", report=False)
    fleet.report("a", blocks_total=90, blocks_free=90)  # eleven chunks
    fleet.serve(prompt(1, chunks=10))
    fleet.serve(prompt(2, chunks=5))
    assert [score.matched_blocks for score in fleet.route(MODEL, prompt(1)).scores] == [6 * 8]


def test_what_was_sent_is_known_where_nobody_reports() -> None:
    fleet = TextFleet("a", "b", report=False)
    first = fleet.serve(prompt())
    assert first.knowledge is Knowledge.LOAD
    fleet.serve(prompt(2))
    again = fleet.route(MODEL, prompt(chunks=11))
    assert (again.worker, again.knowledge, again.reason) == (
        first.worker,
        Knowledge.APPROXIMATE,
        Reason.LONGEST_PREFIX,
    )


def test_a_worker_without_an_agent_that_was_away_begins_with_nothing() -> None:
    fleet = TextFleet("a", report=False)
    fleet.serve(prompt())
    assert fleet.route(MODEL, prompt()).knowledge is Knowledge.APPROXIMATE
    fleet.worker_failed("default/demo/a")
    assert fleet.route(MODEL, prompt()).knowledge is Knowledge.LOAD


def test_a_worker_in_place_of_one_that_failed_keeps_what_it_is_sent() -> None:
    fleet = TextFleet("a", report=False)
    fleet.worker_failed("default/demo/a")
    fleet.update_pools([view(pool(uid="another"), ["a"])])
    fleet.serve(prompt())
    assert fleet.route(MODEL, prompt()).knowledge is Knowledge.APPROXIMATE


def test_no_claim_of_waiting_work_makes_a_worker_look_idle() -> None:
    """Long prompts times as many requests as there can be are no small number."""
    fleet = TextFleet("a", "b")
    long, longer = Prompt(tokens=2**21), Prompt(tokens=2**22)
    first = fleet.route(MODEL, long, exclude=frozenset({"default/demo/b"}))
    second = fleet.route(MODEL, longer, exclude=frozenset({"default/demo/a"}))
    with fleet.begin(first, long), fleet.begin(second, longer):
        fleet.receive(fleet.links["a"].connection, state(1, waiting=2**60, waiting_tokens=None))
        assert fleet.route(MODEL, prompt(2)).worker == "b"


def test_an_estimate_refuses_nobody() -> None:
    fleet = TextFleet("a", report=False)
    fleet.report("a", blocks_total=100, blocks_free=100, blocks_idle=0)
    decision = fleet.route(MODEL, prompt(chunks=1000))
    assert (decision.verdict, decision.knowledge) == (Verdict.ROUTE, Knowledge.LOAD)


def test_a_text_without_a_whole_chunk_is_left_to_load() -> None:
    fleet = TextFleet("a")
    decision = fleet.serve(prompt(chunks=0, tokens=30))
    assert (decision.knowledge, decision.prompt_tokens) == (Knowledge.LOAD, 30)


def test_without_an_index_of_texts_load_decides() -> None:
    fleet = fleet_of("a")
    fleet.report("a")
    assert fleet.route(MODEL, prompt()).knowledge is Knowledge.LOAD


class Failing(BlockIndex):
    def apply(self, *_: Any) -> None:
        raise IndexDefectError("broken")


def test_an_index_that_cannot_be_told_what_was_sent_costs_no_answer() -> None:
    fleet = TextFleet("a", texts=Failing())
    for _ in range(2):
        decision = fleet.serve(prompt())
        assert (decision.verdict, decision.predicted_tokens) == (Verdict.ROUTE, 0)


def asked_first(fleet: TextFleet, guess: Prompt) -> str:
    return fleet.renderers(MODEL, 1, guess=guess)[0].name


def test_who_will_probably_serve_a_text_is_asked_for_its_keys_first() -> None:
    fleet = TextFleet(*(f"w{number:02}" for number in range(40)))
    holders = {seed: fleet.serve(prompt(seed)).worker for seed in range(1, 31)}
    assert len(set(holders.values())) == 30
    for seed, holder in holders.items():
        assert (
            asked_first(fleet, prompt(seed, chunks=12)) == holder == fleet.route(MODEL, prompt(seed, chunks=12)).worker
        )
    unknown = prompt(99)
    assert asked_first(fleet, unknown) == fleet.route(MODEL, unknown).worker


def test_a_busy_holder_of_a_text_is_asked_after_one_that_would_serve_it() -> None:
    fleet = TextFleet(*(f"w{number:02}" for number in range(40)))
    holder = fleet.serve(prompt()).worker
    for _ in range(20):
        fleet.begin(fleet.route(MODEL, prompt()), prompt(chunks=200))
    chosen = fleet.route(MODEL, prompt()).worker
    assert chosen != holder
    assert asked_first(fleet, prompt()) == chosen


def test_to_guess_who_will_serve_looks_at_no_worker_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = TextFleet(*(f"w{number:03}" for number in range(100)))
    fleet.serve(prompt())
    judged = counted_calls(monkeypatch, Worker, "stand")
    fleet.renderers(MODEL, 2, guess=prompt())
    assert not judged
    fleet.receive(fleet.links["w000"].connection, state(0))
    fleet.renderers(MODEL, 2, guess=prompt())
    assert not judged, "its row has changed in place"
