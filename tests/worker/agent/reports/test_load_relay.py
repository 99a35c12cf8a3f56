"""Control planes that share their load through an agent, on real sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cachefleet_core.report_fields import Flight
from cachefleet_core.report_frames import MAX_LOADS, Loads, Share, SharedLoad, decode_up, encode
from cachefleet_worker.agent.reports.load_relay import MAX_BYTES, LoadRelay, Passing
from cachefleet_worker.agent.settings import AgentSettings
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.reports.test_uplink import side

pytestmark = pytest.mark.usefixtures("hurried")

Make = Callable[..., AgentSettings]


def load(origin: str, *numbers: int, whole: bool = False) -> SharedLoad:
    flights = tuple(Flight(number, 0.0, *(True, 100, 1, 4, 4, 0, 0, b"")) for number in numbers)
    return SharedLoad(origin=origin, whole=whole, flights=flights)


def heard(plane: ControlPlane) -> list[SharedLoad]:
    return [one for frame in plane.frames if isinstance(frame, Loads) for one in frame.loads]


async def test_what_one_says_all_others_hear_that_share(make_settings: Make, plane: ControlPlane) -> None:
    async with ControlPlane() as other, ControlPlane() as old:
        urls = f"{plane.url},{other.url},{old.url}"
        async with side(make_settings(control_planes=urls)) as one:
            for each in (plane, other, old):
                await each.until(lambda each=each: each.state)  # type: ignore[misc] # the loop's own value
            await plane.send(Share("a"))
            await plane.until(lambda: len(one.feed.relay) == 1)
            await other.send(Share("b"))
            await other.until(lambda: other.state and other.state.sharing == 2)
            await plane.send(load("a", 1, 2))
            await plane.send(load("a", 3))
            await other.until(lambda: len(heard(other)) == 2)
            await other.send(load("b", 7, whole=True))
            await plane.until(lambda: heard(plane) == [load("b", 7, whole=True)])
            assert heard(other) == [load("a", 1, 2), load("a", 3)]
            assert heard(old) == []


async def test_of_one_that_is_gone_the_others_hear_that_nothing_is_in_flight(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with ControlPlane() as other, side(make_settings(control_planes=f"{plane.url},{other.url}")) as one:
        for name, each in (("a", plane), ("b", other)):
            await each.until(lambda each=each: each.state)  # type: ignore[misc] # the loop's own value
            await each.send(Share(name))
        await other.until(lambda: len(one.feed.relay) == 2)
        await plane.send(load("a", 1))
        await other.until(lambda: heard(other))
        await plane.close(1012)
        await other.until(lambda: heard(other)[-1] == load("a", whole=True))
        await other.until(lambda: other.state and other.state.sharing == 1)


async def test_a_slow_reader_loses_the_oldest_and_nothing_grows() -> None:
    relay, fast, slow = LoadRelay(lambda: None), Passing(lambda: None), Passing(lambda: None)
    relay.join(fast, "a")
    relay.join(slow, "b")
    for number in range(3 * MAX_LOADS):
        relay.tell(fast, encode(load("a", number)))
    [frame] = slow.take()
    passed = decode_up(frame)
    assert isinstance(passed, Loads)
    assert [one.flights[0].number for one in passed.loads] == [*range(2 * MAX_LOADS, 3 * MAX_LOADS)]
    large = encode(load("a", *range(4000)))
    for _ in range(3 * MAX_BYTES // len(large)):
        relay.tell(fast, large)
    [frame] = slow.take()
    assert MAX_BYTES / 2 < len(frame) < MAX_BYTES + 100
    assert (slow.take(), fast.take()) == ([], [])
