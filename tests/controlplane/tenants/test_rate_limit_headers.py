"""What limits leave, as OpenAI's and Anthropic's clients read it."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.tenants.rate_limit_headers import Room, Rooms, duration, moment, tightest


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0, "0s"),
        (0.1, "1s"),
        (59, "59s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (3661, "1h1m1s"),
        (2**21, "582h32m32s"),
    ],
)
def test_durations_are_as_openai_has_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_moments_are_rounded_up() -> None:
    assert moment(1_800_000_000.25) == "2027-01-15T08:00:01Z"


def test_each_api_has_its_own_names_and_what_is_not_limited_has_none() -> None:
    rooms = Rooms(Room(60, 59, 60.0), Room(1000, 400, 12.0))
    assert dict(rooms.headers(anthropic=False, now=0.0)) == {
        b"x-ratelimit-limit-requests": b"60",
        b"x-ratelimit-remaining-requests": b"59",
        b"x-ratelimit-reset-requests": b"1m0s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"400",
        b"x-ratelimit-reset-tokens": b"12s",
    }
    assert dict(Rooms(tokens=Room(5, 0, 30.0)).headers(anthropic=True, now=60.0)) == {
        b"anthropic-ratelimit-tokens-limit": b"5",
        b"anthropic-ratelimit-tokens-remaining": b"0",
        b"anthropic-ratelimit-tokens-reset": b"1970-01-01T00:01:30Z",
    }
    assert Rooms().headers(anthropic=False, now=0.0) == ()


def test_anthropics_clients_are_told_of_uncached_and_output_tokens_apart() -> None:
    rooms = Rooms(uncached_tokens=Room(50, 40, 12.0), output_tokens=Room(20, 3, 0.0))
    assert dict(rooms.headers(anthropic=True, now=0.0)) == {
        b"anthropic-ratelimit-input-tokens-limit": b"50",
        b"anthropic-ratelimit-input-tokens-remaining": b"40",
        b"anthropic-ratelimit-input-tokens-reset": b"1970-01-01T00:00:12Z",
        b"anthropic-ratelimit-output-tokens-limit": b"20",
        b"anthropic-ratelimit-output-tokens-remaining": b"3",
        b"anthropic-ratelimit-output-tokens-reset": b"1970-01-01T00:00:00Z",
    }
    assert rooms.headers(anthropic=False, now=0.0) == (), "OpenAI has no names for them"


def test_of_several_limits_of_a_unit_the_one_that_leaves_fewest_is_told() -> None:
    minute, day = Rooms(Room(60, 59, 1.0), Room(100, 50, 1.0)), Rooms(Room(90, 3, 9.0), Room(900, 60, 9.0))
    assert tightest([minute]) is minute
    assert tightest([minute, day, Rooms()]) == Rooms(Room(90, 3, 9.0), Room(100, 50, 1.0))
