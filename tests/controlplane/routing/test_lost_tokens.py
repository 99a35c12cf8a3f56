"""Tokens lost by cause add up, whatever is known, and each part of a prompt has the first cause that reaches it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.routing.cache_shortfall import Cause
from cachefleet_controlplane.routing.lost_tokens import Levels, LostCause, lost_tokens, of_shortfall
from cachefleet_controlplane.routing.reason_texts import LOST

TOKENS = st.integers(0, 300)
LEVELS = st.builds(
    Levels,
    prompt_tokens=TOKENS,
    served_tokens=TOKENS,
    whole=st.none() | st.sampled_from(LostCause),
    servable_tokens=TOKENS,
    claimed_tokens=TOKENS,
    shortfall=st.sampled_from([of_shortfall(cause) for cause in Cause]),
    first_tokens=TOKENS,
    elsewhere_tokens=TOKENS,
    seen_tokens=TOKENS,
    gone=st.sampled_from(LostCause),
)


@given(LEVELS)
def test_the_causes_add_up_to_all_that_was_not_served(levels: Levels) -> None:
    lost = lost_tokens(levels)
    assert sum(lost.values()) == levels.prompt_tokens - min(levels.served_tokens, levels.prompt_tokens)
    assert all(tokens > 0 for tokens in lost.values())


def levels(**changes: Any) -> Levels:
    """A prompt of 100 tokens in blocks of 16, of which 96 can be served."""
    return Levels(**{"prompt_tokens": 100, "served_tokens": 0, "servable_tokens": 96} | changes)


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({}, {"first_seen": 96, "last_block": 4}),
        ({"served_tokens": 96}, {"last_block": 4}),
        ({"served_tokens": 100}, {}),
        ({"served_tokens": 98}, {"last_block": 2}),
        ({"servable_tokens": 0}, {"last_block": 100}),
        ({"claimed_tokens": 32, "shortfall": LostCause.STALE}, {"stale": 32, "first_seen": 64, "last_block": 4}),
        ({"claimed_tokens": 32, "served_tokens": 48}, {"first_seen": 48, "last_block": 4}),
        ({"elsewhere_tokens": 64, "served_tokens": 16}, {"held_elsewhere": 48, "first_seen": 32, "last_block": 4}),
        ({"elsewhere_tokens": 64, "seen_tokens": 48}, {"held_elsewhere": 64, "first_seen": 32, "last_block": 4}),
        ({"seen_tokens": 500}, {"evicted": 96, "last_block": 4}),
        ({"seen_tokens": 16, "gone": LostCause.RESTARTED}, {"restarted": 16, "first_seen": 80, "last_block": 4}),
        (
            {"claimed_tokens": 16, "first_tokens": 32, "elsewhere_tokens": 48, "seen_tokens": 64},
            {"unknown": 16, "moved": 16, "held_elsewhere": 16, "evicted": 16, "first_seen": 32, "last_block": 4},
        ),
        ({"whole": LostCause.NOT_RENDERED, "served_tokens": 16, "seen_tokens": 64}, {"not_rendered": 84}),
        ({"whole": LostCause.NOT_TOLD, "served_tokens": 100}, {}),
    ],
)
def test_each_part_has_the_first_cause_that_reaches_it(given: dict[str, Any], lost: dict[str, int]) -> None:
    assert lost_tokens(levels(**given)) == lost


def test_every_cause_of_a_shortfall_is_one_of_lost_tokens() -> None:
    claims = [cause for cause in Cause if cause not in {Cause.IN_FLIGHT, Cause.UNREPORTED}]
    assert [of_shortfall(cause).value for cause in claims] == [cause.value for cause in claims]
    assert of_shortfall(Cause.IN_FLIGHT) is LostCause.UNKNOWN
    assert of_shortfall(Cause.UNREPORTED) is LostCause.EVICTED
    assert of_shortfall(None) is LostCause.UNKNOWN


def test_every_cause_has_its_sentence() -> None:
    assert set(LOST) == set(LostCause)
    assert len(set(LOST.values())) == len(LOST)
