"""Whether a preempted request is handed back, apart from any engine."""

from __future__ import annotations

import pytest

from cachefleet_worker.plugin.gate.rules import Candidate, Refusal, hand_back
from cachefleet_worker.plugin.live_policy import STOCK, LivePolicy

HALF = LivePolicy(hand_back=True, reject_below=0.5)


def victim(computed: int, needed: int = 200, *, own: float | None = None, resumable: bool = True) -> Candidate:
    return Candidate(computed=computed, needed=needed, own=own, resumable=resumable, preemptions=1)


def test_one_with_too_little_left_is_handed_back() -> None:
    assert hand_back(victim(96), HALF) == Refusal(0.48, 0.5, "preempted")


def test_one_with_enough_left_goes_on() -> None:
    assert hand_back(victim(100), HALF) is None


def test_what_it_has_produced_counts_as_needed() -> None:
    assert hand_back(victim(128, 200), HALF) is None
    assert hand_back(victim(128, 400), HALF) is not None


def test_an_unmarked_one_is_never_handed_back() -> None:
    assert hand_back(victim(0, resumable=False), HALF) is None


@pytest.mark.parametrize("policy", [STOCK, LivePolicy(reject_below=0.5), LivePolicy(hand_back=True)])
def test_without_a_policy_for_it_none_is_handed_back(policy: LivePolicy) -> None:
    assert hand_back(victim(0), policy) is None


def test_the_threshold_of_fresh_requests_does_not_count() -> None:
    assert hand_back(victim(120, own=0.9), LivePolicy(hand_back=True, reject_below=0.5, threshold=0.9)) is None
