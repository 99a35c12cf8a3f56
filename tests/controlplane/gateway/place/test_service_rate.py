"""When one who was refused may come again."""

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.place.service_rate import WINDOW_SECONDS, ServiceRate


def busy(since: float = 0.0) -> ServiceRate:
    """A fleet that always has a request in flight."""
    drain = ServiceRate()
    drain.began(since)
    return drain


def end(drain: ServiceRate, blocks: int, now: float) -> None:
    """One of two requests in flight ends."""
    drain.began(now)
    drain.ended(blocks, now)


def test_it_is_what_is_wanted_over_what_ends_in_a_second() -> None:
    drain = busy()
    for second in range(20):
        end(drain, 5, float(second))
    assert drain.retry_after(40, 20.0) == 8
    assert drain.retry_after(41, 20.0) == 9


def test_only_the_window_counts() -> None:
    drain = busy()
    end(drain, 1_000_000, 0.0)
    end(drain, 30, 50.0)
    assert drain.retry_after(10, 50.0) == WINDOW_SECONDS * 10 / 30
    assert drain.retry_after(1, 80.0) == WINDOW_SECONDS


def test_idle_seconds_do_not_count() -> None:
    """Ten blocks in five seconds, twice, with an hour between: 34 blocks are 17 s of work, however long nobody came."""
    drain = ServiceRate()
    for begin in (0.0, 3600.0):
        drain.began(begin)
        assert drain.retry_after(34, begin) == (WINDOW_SECONDS if begin == 0 else 17)
        drain.ended(10, begin + 5)
    for later in (3605.0, 3640.0, 9999.0):
        assert drain.retry_after(34, later) == 17


def test_a_busy_second_counts_once_however_many_are_in_flight() -> None:
    drain = ServiceRate()
    for _ in range(5):
        drain.began(0.0)
    for second in range(1, 6):
        drain.ended(2, float(second))
    assert drain.retry_after(34, 100.0) == 17


def test_where_nothing_ended_it_is_the_window() -> None:
    assert ServiceRate().retry_after(1, 1.0) == WINDOW_SECONDS


def test_what_ends_at_once_is_not_taken_for_a_pace() -> None:
    drain = busy(5.0)
    end(drain, 10, 5.0)
    assert drain.retry_after(40, 5.001) == 4


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 20), st.booleans()), max_size=40), st.integers(0, 10**5))
def test_it_is_a_whole_second_to_a_minute_and_grows_with_what_is_wanted(
    ends: list[tuple[int, float, bool]], want: int
) -> None:
    now, drain = 0.0, ServiceRate()
    for blocks, pause, begins in ends:
        now += pause
        if begins:
            drain.began(now)
        else:
            drain.ended(blocks, now)
    assert 1 <= drain.retry_after(want, now) <= drain.retry_after(want + 100, now) <= 60
