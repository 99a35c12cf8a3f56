"""The order of those who wait, against a sorted list of them all."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefleet_controlplane.gateway.place.queue_order import Ticket, WaitList

A, B = ("default", "a"), ("default", "b")


def test_priority_goes_before_arrival_and_arrival_before_entering() -> None:
    room = WaitList(9)
    late = room.enter(A, priority=50, arrived=2.0, blocks=1)
    early = room.enter(A, priority=50, arrived=1.0, blocks=1)
    urgent = room.enter(A, priority=0, arrived=3.0, blocks=1)
    served = []
    while (ticket := room.first(A)) is not None:
        served.append(ticket)
        room.leave(ticket)
    assert served == [urgent, early, late]


def test_a_tenant_with_fewer_sequences_running_goes_first() -> None:
    room = WaitList(9)
    hog = [room.enter(A, priority=50, arrived=float(number), blocks=1, tenant="hog") for number in range(2)]
    late = room.enter(A, priority=50, arrived=9.0, blocks=1, tenant="other")
    assert room.first(A) == hog[0]
    room.run(A, "hog", 8)
    assert room.first(A) == late
    assert not room.before(A, priority=50, arrived=8.0, tenant="third")
    assert room.before(A, priority=50, arrived=99.0, tenant="third")
    assert room.before(A, priority=50, arrived=0.0, tenant="hog")
    room.run(A, "hog", -8)
    assert room.first(A) == hog[0]
    assert not room._running


def test_whoever_would_go_later_has_to_wait() -> None:
    room = WaitList(9)
    room.enter(A, priority=50, arrived=2.0, blocks=1)
    assert room.before(A, priority=50, arrived=3.0)
    assert room.before(A, priority=90, arrived=1.0)
    assert not room.before(A, priority=50, arrived=1.0)
    assert not room.before(A, priority=0, arrived=3.0)
    assert not room.before(B, priority=50, arrived=3.0)


@pytest.mark.parametrize("places", [0, 2])
def test_a_full_room_takes_nobody_until_somebody_leaves(places: int) -> None:
    room = WaitList(places)
    inside = [room.enter(fleet, priority=1, arrived=1.0, blocks=1) for fleet in (A, B)[:places]]
    assert room.enter(A, priority=0, arrived=0.0, blocks=1) is None
    for ticket in inside:
        assert ticket is not None
        assert room.leave(ticket)
        assert not room.leave(ticket)
        assert room.enter(A, priority=0, arrived=0.0, blocks=1) is not None
    assert len(room) == places


class RoomMachine(RuleBasedStateMachine):
    """Nobody is lost, nobody served twice, the order and the bound are kept, and who leaves frees a place."""

    @initialize(places=st.integers(0, 6))
    def begin(self, places: int) -> None:
        self.room = WaitList(places)
        self.places = places
        self.inside: list[Ticket] = []
        self.outside: list[Ticket] = []

    @rule(
        fleet=st.sampled_from([A, B]), priority=st.integers(0, 2), arrived=st.integers(0, 3), blocks=st.integers(0, 9)
    )
    def enter(self, fleet: tuple[str, str], priority: int, arrived: int, blocks: int) -> None:
        ticket = self.room.enter(fleet, priority=priority, arrived=arrived, blocks=blocks)
        assert (ticket is None) == (len(self.inside) == self.places)
        if ticket is not None:
            assert ticket not in self.inside + self.outside
            self.inside.append(ticket)

    @precondition(lambda self: self.inside)
    @rule(which=st.integers(0, 99))
    def give_up(self, which: int) -> None:
        ticket = self.inside.pop(which % len(self.inside))
        assert self.room.leave(ticket)
        self.outside.append(ticket)

    @rule(fleet=st.sampled_from([A, B]))
    def serve(self, fleet: tuple[str, str]) -> None:
        first = self.room.first(fleet)
        if first is not None:
            assert self.room.leave(first)
            self.inside.remove(first)
            self.outside.append(first)

    @precondition(lambda self: self.outside)
    @rule(which=st.integers(0, 99))
    def give_up_again(self, which: int) -> None:
        assert not self.room.leave(self.outside[which % len(self.outside)])

    @invariant()
    def it_is_as_counted(self) -> None:
        if not hasattr(self, "room"):
            return
        assert len(self.room) == len(self.inside) <= self.places
        assert set(self.room.fleets()) == {ticket.fleet for ticket in self.inside}
        for fleet in (A, B):
            line = sorted((t for t in self.inside if t.fleet == fleet), key=lambda t: (t.priority, t.arrived, t.number))
            assert self.room.first(fleet) == (line[0] if line else None)
            assert self.room.wanted(fleet) == sum(ticket.blocks for ticket in line)
            assert self.room.before(fleet, priority=1, arrived=1.0) == any(
                (t.priority, t.arrived) <= (1, 1) for t in line
            )


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)
