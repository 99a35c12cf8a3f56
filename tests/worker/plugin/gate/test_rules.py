"""The gate's decision, apart from any engine."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_worker.plugin.gate.rules import (
    FIELD,
    RESUMABLE,
    Candidate,
    Refusal,
    is_gated_endpoint,
    is_resumable,
    own_threshold,
    refuse_fresh,
)

MALFORMED: tuple[object, ...] = (-0.1, 1.1, math.nan, math.inf, -math.inf, True, False, "0.5", [0.5], {}, 1e309)


def candidate(computed: int, needed: int, own: float | None = None) -> Candidate:
    return Candidate(computed=computed, needed=needed, own=own, resumable=False)


def test_the_ratio_must_reach_the_threshold() -> None:
    assert refuse_fresh(candidate(128, 512, 0.25), 0.0) is None
    assert refuse_fresh(candidate(128, 512, 0.2500001), 0.0) == Refusal(0.25, 0.2500001, "request")


def test_the_requests_own_threshold_wins_also_with_zero() -> None:
    assert refuse_fresh(candidate(0, 100, 0.0), 0.8) is None
    assert refuse_fresh(candidate(40, 100, 0.1), 0.8) is None
    assert refuse_fresh(candidate(40, 100, 0.9), 0.0) == Refusal(0.4, 0.9, "request")


def test_without_one_of_its_own_the_default_counts() -> None:
    assert refuse_fresh(candidate(41, 100), 0.8) == Refusal(0.41, 0.8, "global")
    assert refuse_fresh(candidate(0, 100), 0.0) is None


def test_nothing_needed_is_a_full_hit() -> None:
    assert refuse_fresh(candidate(0, 0, 1.0), 1.0) is None


def test_more_than_needed_is_no_more_than_a_full_hit() -> None:
    assert candidate(300, 200).ratio == 1.0


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.none() | st.floats(0, 1), st.floats(0, 1))
def test_a_request_is_refused_exactly_where_its_ratio_is_lower(
    computed: int, needed: int, own: float | None, default: float
) -> None:
    refusal = refuse_fresh(candidate(computed, needed, own), default)
    threshold = default if own is None else own
    assert (refusal is not None) == (needed > 0 and min(1, computed / needed) < threshold)
    assert threshold > 0 or refusal is None


@pytest.mark.parametrize("value", MALFORMED, ids=str)
def test_a_malformed_threshold_counts_as_absent(value: Any) -> None:
    assert own_threshold({FIELD: value}) is None


@pytest.mark.parametrize(("value", "own"), [(0, 0.0), (0.0, 0.0), (1, 1.0), (0.33, 0.33), (None, None)])
def test_a_threshold_is_read(value: Any, own: float | None) -> None:
    assert own_threshold({FIELD: value}) == own


def test_no_arguments_are_no_threshold_and_no_mark() -> None:
    assert own_threshold(None) is None
    assert not is_resumable(None)


@pytest.mark.parametrize(
    ("extra_args", "resumable"),
    [
        ({RESUMABLE: 1}, True),
        ({RESUMABLE: 0}, False),
        ({RESUMABLE: "1"}, False),
        ({FIELD: 0.001}, True),
        ({FIELD: 0}, False),
        ({FIELD: "0.5"}, False),
        ({FIELD: 0, RESUMABLE: 1}, True),
        ({"other": 1}, False),
    ],
)
def test_a_mark_or_a_threshold_above_zero_makes_resumable(extra_args: dict[str, Any], resumable: bool) -> None:  # noqa: FBT001 - a case's expectation
    assert is_resumable(extra_args) is resumable


@pytest.mark.parametrize(
    ("request_id", "gated"),
    [
        ("chatcmpl-a0-3f2b1c00", True),
        ("cmpl-a0-0-3f2b1c00", True),
        ("1_cmpl-a0-0-3f2b1c00", True),
        ("generate-tokens-x-3f2b1c00", True),
        ("resp_a0-3f2b1c00", False),
        ("transcribe-a0", False),
        ("chatcmpl-a0-77-beam-3-3f2b1c00", False),
        ("cmpl-x-beam-y-3f2b1c00", True),
        ("7", False),
    ],
)
def test_only_apis_that_can_say_so_are_gated(request_id: str, gated: bool) -> None:  # noqa: FBT001 - as above
    assert is_gated_endpoint(request_id) is gated
