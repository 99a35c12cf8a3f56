"""How many workers are desired over a day of a trace, beside the fewest that simulations show to be enough."""

import pytest

from bench.curve import SELF_MADE
from bench.scaling_day import DAILY, DAY, MOST, RATE, days, followed, stretched, turns


def test_a_trace_is_stretched_to_a_day_with_a_quiet_night() -> None:
    requests = SELF_MADE.load()
    day = stretched(requests)
    assert [one.number for one in day] == [one.number for one in requests]
    assert (day[0].at, day[-1].at) == pytest.approx((0.0, DAY), abs=1.0)
    hours = [sum(hour * 3600 <= one.at < (hour + 1) * 3600 for one in day) for hour in (1, 12, 22)]
    assert hours[1] > 2 * max(hours[0], hours[2])


@pytest.mark.parametrize(("numbers", "expected"), [([1, 2, 2, 3], 0), ([1, 3, 3, 2, 1], 1), ([2, 3, 2, 3, 2], 3)])
def test_turns_are_rises_after_falls_and_falls_after_rises(numbers: list[int], expected: int) -> None:
    assert turns(numbers) == expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_over_a_day_the_number_is_within_one_of_the_best_and_does_not_flap() -> None:
    try:
        requests = DAILY.load()
    except FileNotFoundError as error:
        pytest.skip(f"the trace is not there: {error}; CACHEFLEET_TRACES says where to look")
    runs = days(DAILY, stretched(requests), MOST)
    for rate in (RATE, 0.8 * RATE, 1.25 * RATE):
        steps = followed(runs, rate)
        assert len({step.best for step in steps}) >= 4, "the day has to swing"
        assert all(abs(step.desired - step.best) <= 1 for step in steps), steps
        assert turns([step.desired for step in steps]) <= 2, steps
