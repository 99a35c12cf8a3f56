"""What is remembered of a decision, and what is shown of it at once."""

from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace, decision_body
from cachefleet_controlplane.gateway.request.rendered_prompt import Rendering
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import CandidateScore, Prompt, RoutingPolicy
from cachefleet_controlplane.routing.later_scores import LaterScores
from tests.reference.candidate import Candidate
from tests.reference.choice import decide
from tests.reference.scoring import LEADING

VIEWS = [Candidate(worker=f"w{n}", id=WorkerId(f"p/w{n}#0"), pool="p", url="u") for n in range(20)]


@pytest.mark.parametrize(("candidates", "kept", "left_out"), [(0, 0, 0), (3, 3, 0), (20, LEADING, 20 - LEADING)])
def test_a_record_has_few_candidates_and_says_how_many_more_there_were(
    candidates: int, kept: int, left_out: int
) -> None:
    decision = decide(Prompt(tokens=9), VIEWS[:candidates], RoutingPolicy.CACHE_AWARE, 1.0)
    record = DecisionTrace("id", 0.0, "m", Endpoint.CHAT, decision).made()
    assert (len(record.candidates), record.candidates_left_out) == (kept, left_out)
    assert [one.worker for one in record.candidates[:1]] == ([decision.worker] if decision.worker else [])


def test_a_record_asks_for_no_other_scores() -> None:
    def refuse() -> list[CandidateScore]:
        raise AssertionError("asked for")

    decision = decide(Prompt(tokens=9), VIEWS, RoutingPolicy.CACHE_AWARE, 1.0)
    decision = replace(decision, scores=LaterScores(20, refuse))
    record = DecisionTrace("id", 0.0, "m", Endpoint.CHAT, decision).made()
    assert record.candidates_left_out == 20 - LEADING


def test_a_record_to_be_written_has_its_candidates_encoded_without_making_them() -> None:
    def refuse() -> list[CandidateScore]:
        raise AssertionError("made")

    made = decide(Prompt(tokens=9), VIEWS, RoutingPolicy.CACHE_AWARE, 1.0)
    record = DecisionTrace("id", 0.0, "m", Endpoint.CHAT, made).made()
    encoded = msgspec.json.encode(record.candidates)
    asked = []

    def encode(block_size: int, chosen: str) -> bytes:
        asked.append((block_size, chosen))
        return encoded

    decision = replace(made, leading=LaterScores(len(made.leading), refuse, encode))
    stored = DecisionTrace("id", 0.0, "m", Endpoint.CHAT, decision).stored()
    assert msgspec.json.encode(stored) == msgspec.json.encode(record)
    assert asked == [(0, made.id)]


def test_who_asks_for_the_decision_alone_sees_all_candidates() -> None:
    decision = decide(Prompt(tokens=9), VIEWS, RoutingPolicy.CACHE_AWARE, 1.0)
    shown = json.loads(decision_body("id", parse(b"{}", Endpoint.CHAT), decision, Rendering()))
    assert [one["worker"] for one in shown["candidates"]] == [view.worker for view in VIEWS]


def test_a_tenant_is_shown_no_address_and_nothing_of_other_tenants_load() -> None:
    """Whatever others do, the answer that names the same worker is the same."""
    quiet = Candidate(worker="a", id=WorkerId("p/a#0"), pool="p", url="http://10.0.0.7:8000", report_age=0.1)
    busy = replace(
        quiet,
        requests=9,
        queued_tokens=70_000,
        inflight_tokens=3000,
        blocks_total=900,
        blocks_free=800,
        tokens_per_second=123.0,
        report_age=0.7,
        last_used=5,
    )
    bodies = []
    for view in (quiet, busy):
        decision = decide(Prompt(tokens=9), [view], RoutingPolicy.CACHE_AWARE, 1.0)
        bodies.append(decision_body("id", parse(b"{}", Endpoint.CHAT), decision, Rendering()))
    assert bodies[0] == bodies[1]
    assert b"10.0.0.7" not in bodies[0]
