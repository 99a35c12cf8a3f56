"""An adapter that would be loaded onto the device counts in the cost; plain models pay nothing."""

from __future__ import annotations

from typing import Any

import cachefleet_native

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, RoutingPolicy
from tests.reference.adapter_loading import ASSUMED_SECONDS
from tests.reference.candidate import Candidate
from tests.reference.candidate_view import CandidateView
from tests.reference.choice import decide

SIZE = 16
PROMPT = Prompt(10 * SIZE + 1, b"12345678" * 10, SIZE, 0, Knowledge.EXACT, adapter="sql")


def candidate(name: str, **changes: Any) -> Candidate:
    own: dict[str, Any] = {"tokens_per_second": 10_000.0, "inter_token_seconds": 0.0, "report_age": 0.1}
    return Candidate(worker=name, id=WorkerId(name), pool="p", url="", **(own | changes))


def choose(*candidates: Candidate) -> Decision:
    return decide(PROMPT, candidates, RoutingPolicy.CACHE_AWARE, 0.0)


def test_it_costs_the_time_of_loading_and_else_nothing() -> None:
    plane = cachefleet_native.Plane()
    row = plane.row()
    row.set_adapters(None, ["sql"])
    table = cachefleet_native.WorkerTable(plane, [(row, "full", "full", 0)])
    for adapter, seconds in (("sql", ASSUMED_SECONDS), ("another", 0.0), ("", 0.0)):
        cachefleet_native.pure.hold(row, CandidateView())
        choice = table.choose(cachefleet_native.Index(), b"", 0.0, 5, SIZE, 1, "cost", (), adapter)
        assert choice is not None
        ((_, score),) = choice.leading()
        assert score["adapter_seconds"] == seconds


def test_among_equals_the_worker_that_has_it_wins_and_the_score_tells_why() -> None:
    decision = choose(candidate("full", adapter_seconds=ASSUMED_SECONDS), candidate("has", last_used=9))
    full, has = decision.scores
    assert decision.worker == "has"
    assert (full.adapter_seconds, has.adapter_seconds) == (ASSUMED_SECONDS, 0.0)
    assert full.seconds == has.seconds + ASSUMED_SECONDS


def test_a_longer_prefix_is_worth_a_loading_and_a_short_one_is_not() -> None:
    fast, slow = {"tokens_per_second": 10_000.0}, {"tokens_per_second": 1_000.0}
    for rates, worker in ((fast, "has"), (slow, "holds")):
        holds = candidate("holds", matched_blocks=10, adapter_seconds=ASSUMED_SECONDS, **rates)
        assert choose(holds, candidate("has", **rates)).worker == worker
