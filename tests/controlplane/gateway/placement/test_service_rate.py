"""When one who was refused may come again."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.placement.queue_order import WINDOW_SECONDS, ServiceRate


def test_it_is_what_is_wanted_over_what_ends_in_a_second() -> None:
    drain = ServiceRate(0.0)
    for second in range(20):
        drain.add(5, float(second))
    assert drain.retry_after(40, 20.0) == 8
    assert drain.retry_after(41, 20.0) == 9


def test_only_the_window_counts() -> None:
    drain = ServiceRate(0.0)
    drain.add(1_000_000, 0.0)
    drain.add(30, 50.0)
    assert drain.retry_after(10, 50.0) == WINDOW_SECONDS * 10 / 30
    assert drain.retry_after(1, 80.0) == WINDOW_SECONDS


def test_where_nothing_ended_it_is_the_window() -> None:
    assert ServiceRate(0.0).retry_after(1, 1.0) == WINDOW_SECONDS


def test_what_ends_at_once_is_not_taken_for_a_pace() -> None:
    drain = ServiceRate(5.0)
    drain.add(10, 5.0)
    assert drain.retry_after(40, 5.001) == 4


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 20)), max_size=40), st.integers(0, 100_000))
def test_it_is_a_whole_second_to_a_minute_and_grows_with_what_is_wanted(
    ends: list[tuple[int, float]], want: int
) -> None:
    now, drain = 0.0, ServiceRate(0.0)
    for blocks, pause in ends:
        now += pause
        drain.add(blocks, now)
    assert 1 <= drain.retry_after(want, now) <= drain.retry_after(want + 100, now) <= 60
