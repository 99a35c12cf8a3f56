"""From when on a worker is overdue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.retry.answer_latency import (
    LEAST_SECONDS,
    MOST_SECONDS,
    UNLEARNT_SECONDS,
    AnswerLatency,
    patience,
)


def learnt(*seconds: float) -> AnswerLatency | None:
    latency = None
    for one in seconds:
        latency = AnswerLatency.after(latency, one)
    return latency


def test_it_follows_what_the_worker_usually_takes() -> None:
    steady = patience(learnt(*[2.0] * 50), predicted=0)
    assert steady == pytest.approx(2.0, rel=0.01)
    assert patience(learnt(*[1.0, 3.0] * 25), predicted=0) > 2 * steady
    assert patience(learnt(0.01), predicted=0) == LEAST_SECONDS
    assert patience(learnt(0.01), predicted=7) == 14
    assert patience(learnt(500), predicted=0) == MOST_SECONDS
    assert patience(None, predicted=0) == UNLEARNT_SECONDS


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.floats(0, 100))
def test_it_is_bounded_and_never_below_the_mean(seconds: list[float], predicted: float) -> None:
    latency = learnt(*seconds)
    assert latency is not None
    assert min(seconds) - 1e-9 <= latency.mean <= max(seconds) + 1e-9
    assert min(latency.mean, MOST_SECONDS) <= patience(latency, predicted=predicted) <= MOST_SECONDS
    assert patience(latency, predicted=predicted) >= LEAST_SECONDS
