"""A conversation's pull: it breaks ties and never costs anything."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.routing.affinity import prefer_if_tied
from cachefleet_controlplane.routing.decision import (
    CandidateScore,
    Decision,
    Knowledge,
    NextChoice,
    Reason,
    RoutingPolicy,
    Verdict,
)
from cachefleet_controlplane.store.decision_records import CandidateRecord
from tests.controlplane.store.conftest import CANDIDATE

_SAME = {name: getattr(CANDIDATE, name) for name in CandidateRecord.__struct_fields__}


def score(number: int, **changes: Any) -> CandidateScore:
    fields = {name: value for name, value in _SAME.items() if name in CandidateScore.__struct_fields__}
    own = {"worker": f"demo-{number}", "id": f"default/demo/demo-{number}#0", "pool": "default/demo"}
    return CandidateScore(**(fields | own | changes))


def decided(number: int, *scores: CandidateScore, **changes: Any) -> Decision:
    made = Decision(
        verdict=Verdict.ROUTE,
        reason=Reason.LOAD_ONLY,
        policy=RoutingPolicy.CACHE_AWARE,
        knowledge=Knowledge.LOAD,
        worker=f"demo-{number}",
        id=score(number).id,
        pool="default/demo",
        scores=scores,
    )
    return replace(made, **changes)


PREFERRED = "default/demo/demo-1"


def leant(decision: Decision, other: Decision | None = None) -> Decision:
    asked: list[frozenset[str]] = []

    def again(others: frozenset[str]) -> Decision:
        asked.append(others)
        assert PREFERRED not in others
        return other or decided(1, score(1))

    return prefer_if_tied(decision, PREFERRED, again)


def test_a18_among_equals_it_is_the_one_preferred() -> None:
    before = decided(0, score(0), score(1), score(2))
    found = leant(before)
    assert (found.full_name, found.reason, found.scores) == (PREFERRED, before.reason, before.scores)


def test_where_it_is_preferred_the_one_decided_on_is_next() -> None:
    following = [
        NextChoice(f"default/demo/demo-{number}", f"http://{number}", partial(decided, number)) for number in (1, 2)
    ]
    before = decided(0, score(0), score(1), score(2), next=following, url="http://0")
    found = leant(before)
    assert [other.url for other in found.next] == ["http://0", "http://2"]
    assert found.next[0].made() is before
    elsewhere = leant(before, decided(1, score(1), pool="default/other", worker="demo-1"))
    assert elsewhere is before


def test_a_copy_that_is_computed_where_it_is_preferred_has_been_paid_for_too() -> None:
    before = decided(0, score(0), score(1), prefix_tokens=1600, paid_seconds=2.0)
    found = leant(before)
    assert (found.full_name, found.prefix_tokens, found.paid_seconds) == (PREFERRED, 1600, 2.0)


@pytest.mark.parametrize(
    ("chosen", "preferred"),
    [
        ({"matched_blocks": 5}, {"matched_blocks": 4}),
        ({"seconds": 0.05}, {"seconds": 0.0500001}),
        ({}, {"fits": False}),
    ],
    ids=["a longer match", "a lower cost", "no room"],
)
def test_a18_whatever_is_better_elsewhere_wins(chosen: dict[str, Any], preferred: dict[str, Any]) -> None:
    before = decided(0, score(0, **chosen), score(1, **preferred))
    assert leant(before) is before


@pytest.mark.parametrize(
    "change",
    [
        {"verdict": Verdict.QUEUE},
        {"policy": RoutingPolicy.ROUND_ROBIN},
        {"policy": RoutingPolicy.LEAST_LOADED},
        {"worker": "demo-1", "id": score(1).id},
    ],
)
def test_a18_other_policies_and_refusals_stay(change: dict[str, Any]) -> None:
    before = decided(0, score(0), score(1), **change)
    assert leant(before) is before


def test_a18_one_that_is_not_there_any_more_is_not_waited_for() -> None:
    before = decided(0, score(0), score(2))
    assert leant(before) is before
    gone = decided(0, score(0), score(1))
    assert leant(gone, decided(0, verdict=Verdict.REJECT)) is gone
