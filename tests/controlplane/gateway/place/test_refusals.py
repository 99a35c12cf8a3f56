"""What a client is told whose request is sent to nobody."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.gateway.place.refusals import refusal
from cachefleet_controlplane.routing.decision import Decision, Prompt, Reason, RoutingPolicy
from tests.controlplane.fleets import wid
from tests.reference.candidate import Candidate
from tests.reference.choice import decide

PROMPT = Prompt(tokens=1000, block_size=16, max_tokens=5000)
SMALL = Candidate(worker="demo-0", id=wid("demo-0"), pool="p", url="u", report_age=0.1, blocks_total=50, blocks_free=50)


def rejected(*views: Candidate) -> Decision:
    return decide(PROMPT, views, RoutingPolicy.CACHE_AWARE, 0.0)


def test_too_large_has_both_numbers_in_tokens_and_blocks() -> None:
    error = refusal("m", PROMPT, rejected(SMALL), retry_after=7)
    assert (error.status, error.code, error.headers) == (400, "context_length_exceeded", ())
    assert "1256 tokens (79 blocks of 16)" in error.message
    assert "800 (50 blocks)" in error.message


DROPPED = {
    Reason.NO_ROOM: b"rejected-saturated",
    Reason.QUEUE_FULL: b"rejected-saturated",
    Reason.QUEUE_TIMEOUT: b"rejected-ttl-expired",
    Reason.WAIT_TOO_LONG: b"rejected-saturated",
    Reason.DISPLACED: b"evicted-queue-pressure",
}


@pytest.mark.parametrize(
    "reason", [Reason.NO_ROOM, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.WAIT_TOO_LONG, Reason.DISPLACED]
)
def test_no_room_says_when_to_come_again(reason: Reason) -> None:
    decision = Decision(
        reason=reason, verdict=rejected(SMALL).verdict, policy=RoutingPolicy.CACHE_AWARE, knowledge=PROMPT.knowledge
    )
    error = refusal("m", PROMPT, decision, retry_after=7)
    assert (error.status, error.code) == (429, reason)
    assert error.headers == ((b"retry-after", b"7"), (b"x-llm-d-request-dropped-reason", DROPPED[reason]))
    assert error.message.endswith("Try again in 7 s.")


@pytest.mark.parametrize("decision", [None, rejected()])
def test_nobody_ready_is_503(decision: Decision | None) -> None:
    error = refusal("m", PROMPT, decision, retry_after=7)
    dropped = (b"x-llm-d-request-dropped-reason", b"rejected-no-endpoints")
    assert (error.status, error.headers) == (503, ((b"retry-after", b"7"), dropped))
