"""Decisions by text against the reference, after every event of any history of a fleet."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from cachefleet_controlplane.routing.decision import Chunks, Knowledge, Prompt, RoutingPolicy
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_controlplane.workers.sent_texts import SentTexts
from cachefleet_core.block_keys import pack_keys
from tests.controlplane.fleets import MODEL, pool, view
from tests.controlplane.selection.calls import counted_calls
from tests.controlplane.selection.test_selector import CHAINS, NAMES, WHO, BoardMachine, DefectiveTable, assert_alike
from tests.reference.loads import ModelledFleet
from tests.reference.selection import ReferenceTextSelector

TEXTS = [
    Prompt(
        tokens=round(chunks * each) + extra,
        block_size=16,
        max_tokens=100,
        knowledge=Knowledge.APPROXIMATE,
        chunks=Chunks(pack_keys(line[:chunks]), each),
    )
    for line in CHAINS
    for chunks, each, extra in ((12, 16.0, 0), (7, 33.3, 5), (1, 16.0, 1), (3, 4.5, 0))
] + [
    *(
        Prompt(200, b"", 16, knowledge=Knowledge.APPROXIMATE, chunks=Chunks(pack_keys(CHAINS[0]), 16.0), adapter=name)
        for name in ("a", "c")
    ),
    Prompt(200, block_size=16, knowledge=Knowledge.APPROXIMATE),
    Prompt(200, knowledge=Knowledge.APPROXIMATE, chunks=Chunks(pack_keys(CHAINS[0]), 16.0)),
]
"""Some shorter than a chunk; the last where the block size is not known."""


def text_fleet(*workers: str) -> ModelledFleet:
    fleet = ModelledFleet(texts=True)
    fleet.update_pools([view(pool(), workers)])
    return fleet


class TextMachine(BoardMachine):
    """Whatever happens, what is decided by text is what the reference decides."""

    @initialize(bounds=st.just({}))
    def begin(self, bounds: dict[str, Any]) -> None:
        assert not bounds  # of the index of blocks, which decides nothing here
        self.fleet = text_fleet()
        texts = self.fleet._texts
        assert texts
        self.plain = self.by_text = ReferenceTextSelector(texts._texts, self.fleet)
        self.links, self.inflight_requests, self.epochs, self.elsewhere = {}, [], 0, {}
        self.sequences = dict.fromkeys(WHO, 0)
        self.declare(NAMES, [], role="Both", both=True)

    @rule(prompt=st.sampled_from(TEXTS))
    def send_text(self, prompt: Prompt) -> None:
        self.send(prompt)

    @invariant()
    def every_decision_is_as_if_made_anew(self) -> None:
        if hasattr(self, "fleet"):
            for prompt in TEXTS:
                assert_alike(self.fleet, self.by_text, prompt)
            assert_alike(self.fleet, self.by_text, TEXTS[0], duty=Duty.PREFILL)
            assert_alike(self.fleet, self.by_text, TEXTS[0], exclude=frozenset({"default/demo/demo-0"}))
            assert_alike(self.fleet, self.by_text, TEXTS[0], policy=RoutingPolicy.LEAST_LOADED)


TestTexts = TextMachine.TestCase
TestTexts.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)


def test_a_defect_of_the_index_of_texts_costs_the_guess_and_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = text_fleet("a")
    fleet.begin(fleet.route(MODEL, TEXTS[0]), TEXTS[0]).finish()
    assert fleet.route(MODEL, TEXTS[0]).knowledge is Knowledge.APPROXIMATE
    assert fleet._texts
    table = fleet._texts._tables.of(MODEL, Duty.ANSWER)
    monkeypatch.setattr(table, "native", DefectiveTable(table.native))
    decision = fleet.route(MODEL, TEXTS[0])
    assert (decision.worker, decision.knowledge) == ("a", Knowledge.LOAD)


def test_a_worker_without_an_agent_that_fails_is_expected_to_hold_nothing_until_it_answers() -> None:
    fleet = text_fleet("a")

    def knowledge() -> Knowledge:
        return fleet.route(MODEL, TEXTS[0]).knowledge

    fleet.begin(fleet.route(MODEL, TEXTS[0]), TEXTS[0]).finish()
    assert knowledge() is Knowledge.APPROXIMATE
    fleet.worker_failed("default/demo/a")
    fleet.now += 60
    assert knowledge() is Knowledge.LOAD
    tried = fleet.begin(fleet.route(MODEL, TEXTS[0]), TEXTS[0])
    assert knowledge() is Knowledge.LOAD, "whether it has got it nobody knows"
    tried.first_token()
    fleet.begin(fleet.route(MODEL, TEXTS[0]), TEXTS[0]).finish()
    assert knowledge() is Knowledge.APPROXIMATE


def test_requests_in_flight_alone_are_no_reason_to_look_at_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = text_fleet("a", "b")
    fleet.route(MODEL, TEXTS[0])
    looked = counted_calls(monkeypatch, SentTexts, "follow")
    fleet.begin(fleet.route(MODEL, TEXTS[0]), TEXTS[0]).finish()
    fleet.route(MODEL, TEXTS[1])
    assert looked == []
    fleet.report("a", epoch="e2")
    fleet.route(MODEL, TEXTS[0])
    assert looked
