"""Reasons go with verdicts, and are all written down."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefleet_controlplane.routing.decision import (
    Prompt,
    Reason,
    RoutingPolicy,
    Verdict,
    held_back,
    verdict_of,
)
from tests.controlplane.fleets import wid
from tests.reference.candidate import Candidate
from tests.reference.choice import decide

ROOT = Path(__file__).parents[3]
VIEW = Candidate(worker="demo-0", id=wid("demo-0"), pool="default/demo", url="u")


@pytest.mark.parametrize("reason", Reason)
def test_the_page_on_decisions_has_every_reason(reason: Reason) -> None:
    assert f"`{reason}`" in (ROOT / "docs" / "decisions.md").read_text()


def test_a_choice_may_be_held_back_and_what_is_none_stays_as_it_is() -> None:
    placed = decide(Prompt(tokens=9), [VIEW], RoutingPolicy.CACHE_AWARE, 1.0)
    held = held_back(placed)
    assert (held.verdict, held.reason, held.worker, held.url) == (Verdict.QUEUE, Reason.OTHERS_FIRST, "", "")
    assert (held.uncached_tokens, held.scores) == (9, placed.scores)
    nobody = decide(Prompt(tokens=9), [], RoutingPolicy.CACHE_AWARE, 1.0)
    assert held_back(nobody) is nobody


def test_a_verdict_goes_with_each_reason_that_names_nobody() -> None:
    assert verdict_of(Reason.NO_ROOM) is Verdict.QUEUE
    assert verdict_of(Reason.TOO_LARGE) is verdict_of(Reason.NO_READY_WORKER) is Verdict.REJECT
    assert verdict_of(Reason.COLD) is Verdict.ROUTE
