"""Waiting, carried out: by hand, in one event loop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from cachefleet_controlplane.gateway.place.fair_shares import Claim
from cachefleet_controlplane.gateway.place.request_queue import Busy, Left, Queue
from cachefleet_controlplane.gateway.place.tenant_activity import UNBOUNDED
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.pool.policy import AdmissionSpec
from tests.controlplane.waiting import until, value

FLEET = ("default", "m")
LONG = 60.0


@dataclass
class Place:
    """So much room, taken by those whose turn comes."""

    metrics: Metrics = field(default_factory=Metrics)
    room: int = 0
    served: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = Queue(places=4, metrics=self.metrics)

    def attempt(self, name: str, size: int) -> str | None:
        if size > self.room:
            return None
        self.room -= size
        self.served.append(name)
        return name

    def come(self, name: str, size: int = 1, *, priority: int = 50, seconds: float = LONG) -> asyncio.Task[str | Left]:
        ticket = self.queue.enter(Claim(FLEET, priority, float(len(name)), name[0]), blocks=size)
        assert ticket is not None
        return asyncio.create_task(self.queue.wait(ticket, lambda: self.attempt(name, size), seconds=seconds))

    def free(self, room: int) -> None:
        self.room += room
        self.queue.wake()


async def test_each_gets_its_turn_in_order_and_a_large_one_is_not_overtaken() -> None:
    place = Place()
    small, large, urgent = place.come("b"), place.come("aa", 5), place.come("ccc", priority=0)
    last = place.come("dddd")
    await asyncio.sleep(0)
    place.free(3)
    assert await urgent == "ccc"
    assert await small == "b"
    await asyncio.sleep(0)
    assert (place.served, len(place.queue)) == (["ccc", "b"], 2)
    place.free(4)
    assert await large == "aa"
    place.free(1)
    assert await last == "dddd"
    assert place.served == ["ccc", "b", "aa", "dddd"]


async def test_without_being_woken_it_looks_again_by_itself() -> None:
    place = Place()
    waiting = place.come("a")
    await asyncio.sleep(0)
    place.room = 1
    assert await asyncio.wait_for(waiting, LONG) == "a"


async def test_whose_time_is_up_gets_nothing_and_the_next_goes_first() -> None:
    place = Place()
    large, small = place.come("a", 5, seconds=0.05), place.come("bb")
    place.room = 1
    assert await asyncio.wait_for(large, LONG) is Left.TIMEOUT
    assert await asyncio.wait_for(small, LONG) == "bb"
    assert value(place.metrics, "queue_wait_seconds_count", outcome="timeout") == 1
    assert value(place.metrics, "queue_wait_seconds_count", outcome="served") == 1
    assert value(place.metrics, "queue_requests") == 0


async def test_who_is_gone_frees_its_place_and_lets_the_next_one_go() -> None:
    place = Place()
    large, small = place.come("a", 5), place.come("bb")
    await asyncio.sleep(0)
    place.room = 1
    large.cancel()
    with pytest.raises(asyncio.CancelledError):
        await large
    assert await asyncio.wait_for(small, LONG) == "bb"
    assert value(place.metrics, "queue_wait_seconds_count", outcome="gone") == 1


async def test_a_full_room_gives_no_ticket() -> None:
    place = Place()
    waiting = [place.come("a") for _ in range(4)]
    assert place.queue.enter(Claim(FLEET, 50, 0.0, "a"), blocks=1) is None
    await asyncio.sleep(0)
    assert value(place.metrics, "queue_requests") == 4
    place.free(1)
    await until(lambda: place.queue.enter(Claim(FLEET, 99, 9.0), blocks=1) is not None)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)


async def test_an_error_of_a_try_is_its_own_request_s() -> None:
    place = Place()

    def fail() -> str:
        raise ValueError("a defect")

    ticket = place.queue.enter(Claim(FLEET, 0, 0.0), blocks=1)
    assert ticket is not None
    failing = asyncio.create_task(place.queue.wait(ticket, fail, seconds=LONG))
    other = place.come("a")
    await asyncio.sleep(0)
    place.free(1)
    with pytest.raises(ValueError, match="a defect"):
        await failing
    assert await other == "a"


async def test_others_first_is_of_one_fleet_and_retry_after_counts_who_waits() -> None:
    place = Place()
    waiting = place.come("aa", 9)
    await asyncio.sleep(0)
    assert place.queue.others_first(Claim(FLEET, 50, 9.0))
    assert not place.queue.others_first(Claim(FLEET, 50, 1.0))
    assert not place.queue.others_first(Claim(("default", "other"), 50, 9.0))
    place.queue.ended(
        Claim(FLEET, 50, 1.0), worker="w", sequences=1, blocks=5
    )  # of a fleet that is not known any more: nothing to count
    place.queue.began(Claim(FLEET, 50, 1.0), worker="w", sequences=1)
    place.queue.ended(Claim(FLEET, 50, 1.0), worker="w", sequences=1, blocks=5)
    assert place.queue.retry_after(FLEET, blocks=1) == 2
    waiting.cancel()
    await asyncio.wait({waiting})
    assert place.queue.retry_after(FLEET, blocks=1) == 1


@pytest.mark.parametrize("bounded", [True, False])
async def test_who_uses_a_fleet_is_counted_only_where_its_pools_bound_tenants(*, bounded: bool) -> None:
    queue, admission = Place().queue, AdmissionSpec(shared_requests=2)
    hog, other = (Claim(FLEET, 50, 1.0, name, bounded=bounded) for name in ("hog", "other"))
    for claim in (other, hog, hog):
        queue.began(claim, worker="w", sequences=1)
    assert (queue.bounds(hog, admission) is not UNBOUNDED, queue.underway(hog, "w")) == (bounded, 2 * bounded)
    for claim in (other, hog, hog):
        queue.ended(claim, worker="w", sequences=1, blocks=1)
    assert queue.underway(hog, "w") == 0


async def test_a_higher_priority_takes_a_place_and_who_lost_it_is_told_at_once() -> None:
    place = Place()
    waiting = [place.come(name) for name in ("a", "b", "cc", "c")]
    await asyncio.sleep(0)
    urgent = place.come("d", priority=10)
    assert await asyncio.wait_for(waiting[2], 30) is Left.DISPLACED
    assert value(place.metrics, "queue_wait_seconds_count", outcome="displaced") == 1
    assert len(place.queue) == 4
    place.free(4)
    assert await urgent == "d"
    assert [await waiting[each] for each in (0, 1, 3)] == ["a", "b", "c"]
    assert place.served == ["d", "a", "b", "c"]


async def test_one_whose_own_worker_is_busy_is_passed_over_and_tried_first_again() -> None:
    place, busy = Place(), [True]

    def attempt(name: str) -> str | Busy | None:
        return Busy.BUSY if busy[0] else place.attempt(name, 1)

    ticket = place.queue.enter(Claim(FLEET, 50, 0.0, "hog"), blocks=1)
    assert ticket is not None
    hog = asyncio.create_task(place.queue.wait(ticket, lambda: attempt("hog"), seconds=LONG))
    other, third = place.come("aa"), place.come("bb")
    await asyncio.sleep(0)
    place.free(1)
    assert await other == "aa"
    late = place.come("cc")  # others go first, and it is not asked before them
    place.free(2)
    assert (await third, await late) == ("bb", "cc")
    assert not hog.done()
    busy[0] = False
    place.free(1)
    assert await hog == "hog"


async def test_what_could_not_be_served_in_time_is_known_once_requests_have_ended() -> None:
    now = [100.0]
    queue = Queue(places=9, metrics=Metrics(), clock=lambda: now[0])
    hog, quiet = Claim(FLEET, 50, 0.0, "hog"), Claim(FLEET, 50, 0.0, "quiet")
    assert queue.enter(hog, blocks=100, tokens=1000) is not None
    assert not queue.hopeless(hog, seconds=1)
    for _ in range(10):
        queue.began(hog, worker="w", sequences=1)
        now[0] += 1.0
        queue.ended(hog, worker="w", sequences=1, blocks=2)
    assert queue.hopeless(hog, seconds=24.9)
    assert not queue.hopeless(hog, seconds=25.1)
    assert not queue.hopeless(quiet, seconds=1)
