"""Pauses between tries."""

from cachefleet_runtime.backoff import backoff


def test_it_doubles_to_its_cap() -> None:
    assert [backoff(n, first=0.2, longest=1.0) for n in range(5)] == [0.2, 0.4, 0.8, 1.0, 1.0]
    assert backoff(10_000, first=0.2, longest=1.0) == 1.0


def test_less_than_none_is_none() -> None:
    assert backoff(-1, first=0.2, longest=1.0) == 0.2
