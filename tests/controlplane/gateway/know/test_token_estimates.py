"""Estimates of a text's length: they start somewhere, follow what is measured, and stay within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.know.text_keys import LEAST, MOST, START, TokenEstimates


def test_they_start_at_four_bytes_a_token() -> None:
    assert TokenEstimates().tokens("m", 4000) == 1000 == 4000 / START
    assert [TokenEstimates().tokens("m", size) for size in (0, 1)] == [0, 1]


def test_they_come_to_what_is_measured_model_by_model() -> None:
    estimates = TokenEstimates()
    for _ in range(100):
        estimates.learn("m", size=600, tokens=200)
    assert estimates.bytes_per_token("m") == pytest.approx(3, abs=0.01)
    assert estimates.bytes_per_token("other") == START


@given(st.lists(st.tuples(st.integers(-5, 10**9), st.integers(-5, 10**9))))
def test_nothing_moves_them_out_of_bounds(seen: list[tuple[int, int]]) -> None:
    estimates = TokenEstimates()
    for size, tokens in seen:
        estimates.learn("m", size=size, tokens=tokens)
    assert LEAST <= estimates.bytes_per_token("m") <= MOST


def test_models_are_bounded() -> None:
    estimates = TokenEstimates(limit=2)
    for name in "abc":
        estimates.learn(name, size=1, tokens=1)
    assert [estimates.bytes_per_token(name) != START for name in "abc"] == [False, True, True]
