"""Minutes that were judged: sums of any range, and joining what others judged of the same."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.judgements.judged_minutes import HOUR_MINUTES, HourPart, JudgedMinutes, Tally

Judged = dict[int, frozenset[str]]
MINUTES = st.dictionaries(st.integers(0, 299), st.frozensets(st.sampled_from(["a", "b"])), max_size=60)


def kept(minutes: Judged, hours: int = 24) -> JudgedMinutes:
    made = JudgedMinutes(hours)
    for minute in sorted(minutes):
        made.judge(minute, minutes[minute])
    return made


def counted(minutes: Judged, first: int, end: int) -> tuple[int, int, dict[str, int]]:
    there = [reasons for minute, reasons in minutes.items() if first <= minute < end]
    misses = {reason: sum(reason in each for each in there) for reason in "ab"}
    return len(there), sum(not each for each in there), {name: count for name, count in misses.items() if count}


def told(tally: Tally) -> tuple[int, int, dict[str, int]]:
    return tally.minutes, tally.met, dict(tally.misses)


@given(MINUTES, st.integers(-10, 310), st.integers(-10, 310))
def test_a_tally_counts_the_minutes_of_its_range(minutes: Judged, first: int, end: int) -> None:
    assert told(kept(minutes).tally(first, end)) == counted(minutes, first, end)


@given(MINUTES, MINUTES, st.integers(0, 2**32))
def test_joining_is_a_union_in_any_order_and_twice_is_once(one: Judged, other: Judged, seed: int) -> None:
    parts = [part for minutes in (one, other) for part in kept(minutes).take_changed()] * 2
    Random(seed).shuffle(parts)
    joined = JudgedMinutes(24)
    for part in parts:
        joined.join(part)
    union = {minute: one.get(minute, frozenset()) | other.get(minute, frozenset()) for minute in {*one, *other}}
    assert told(joined.tally(0, 300)) == counted(union, 0, 300)


def test_only_hours_that_were_judged_since_are_changed() -> None:
    made = kept({5: frozenset(), 70: frozenset("a")})
    assert {part.hour for part in made.take_changed()} == {0, 1}
    made.judge(71, ())
    assert made.take_changed() == [HourPart(1, "", 0b11 << 10), HourPart(1, "a", 1 << 10)]
    assert made.take_changed() == []


def test_old_hours_are_forgotten() -> None:
    made = kept({minute: frozenset("a") for minute in range(0, 600, 30)}, hours=2)
    assert told(made.tally(0, 600)) == (4, 0, {"a": 4})


def test_evicted_blocks_are_of_their_minutes_and_those_from_elsewhere_are_spread() -> None:
    made = JudgedMinutes(24)
    made.judge(3, ("evicted",), evicted=8, of="evicted")
    assert (made.tally(3, 4).evicted, made.tally(0, 3).evicted) == (8, 0)
    [_, part] = made.take_changed()
    other = JudgedMinutes(24)
    other.join(HourPart(0, "evicted", 0b1001, 9))
    other.join(part)
    assert [other.tally(place, place + 1).evicted for place in range(4)] == [5, 0, 0, 4]
    assert other.tally(0, HOUR_MINUTES).evicted == 9, "the most that one of them saw"


@pytest.mark.parametrize("bits", [0, 1, 2**60 - 1])
def test_any_bits_of_an_hour_are_taken(bits: int) -> None:
    made = JudgedMinutes(24)
    made.join(HourPart(0, "", bits))
    assert made.tally(0, HOUR_MINUTES).minutes == bits.bit_count()
