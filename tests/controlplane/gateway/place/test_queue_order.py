"""The order of those who wait, against a sorted list of them all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cachefleet_controlplane.gateway.place import queue_order
from cachefleet_controlplane.gateway.place.fair_shares import Claim, Fleet, Ticket
from cachefleet_controlplane.gateway.place.queue_order import WaitList

A, B = ("default", "a"), ("default", "b")


def claim(arrived: float, priority: int = 50, tenant: str = "", *, fleet: Fleet = A, weight: int = 100) -> Claim:
    return Claim(fleet, priority, arrived, tenant, weight)


def entered(room: WaitList, of: Claim, tokens: int = 1) -> Ticket:
    ticket, displaced = room.enter(of, blocks=1, tokens=tokens)
    assert ticket is not None
    assert displaced is None
    return ticket


def test_priority_goes_before_arrival_and_arrival_before_entering() -> None:
    room = WaitList(9)
    late, early, urgent = (entered(room, claim(at, priority)) for at, priority in ((2.0, 50), (1.0, 50), (3.0, 0)))
    assert room.leading(A, 9) == [urgent, early, late]
    assert room.leading(A, 2) == [urgent, early]
    served = []
    while (ticket := room.first(A)) is not None:
        served.append(ticket)
        room.leave(ticket)
    assert served == [urgent, early, late]
    assert not list(room.fleets())


def test_who_was_sent_more_than_others_goes_after_them() -> None:
    room = WaitList(9)
    hog = [entered(room, claim(float(number), tenant="hog")) for number in range(2)]
    late = entered(room, claim(9.0, tenant="other"))
    assert room.first(A) == hog[0]
    room.began(claim(0.0, tenant="hog"), 800)
    assert room.first(A) == late
    assert not room.before(claim(8.0, tenant="third"))
    assert room.before(claim(99.0, tenant="third"))
    assert room.before(claim(0.0, tenant="hog"))
    room.ended(claim(0.0, tenant="hog"), -800)
    assert room.first(A) == hog[0]


def test_whoever_would_go_later_has_to_wait() -> None:
    room = WaitList(9)
    entered(room, claim(2.0))
    assert room.before(claim(3.0))
    assert room.before(claim(1.0, 90))
    assert not room.before(claim(1.0))
    assert not room.before(claim(3.0, 0))
    assert not room.before(claim(3.0, fleet=B))


@pytest.mark.parametrize("places", [0, 2])
def test_full_places_take_none_of_the_same_share_until_somebody_leaves(places: int) -> None:
    room = WaitList(places)
    inside = [entered(room, claim(1.0, 1, fleet=fleet)) for fleet in (A, B)[:places]]
    assert room.enter(claim(0.0, 1), blocks=1) == (None, None)
    for ticket in inside:
        assert room.leave(ticket)
        assert not room.leave(ticket)
        entered(room, claim(0.0, 1))
    assert len(room) == places


def test_a_higher_priority_takes_the_last_place_of_the_lowest_one_and_of_who_holds_most_there() -> None:
    room = WaitList(5)
    entered(room, claim(0.0, 10, "urgent"))
    one, other = entered(room, claim(1.0, 90, "modest")), entered(room, claim(2.0, 90, "hog"))
    last = entered(room, claim(9.0, 90, "hog", fleet=B))
    entered(room, claim(3.0, 90, "hog"))
    ticket, displaced = room.enter(claim(10.0, 50, "hog"), blocks=1)
    assert displaced == last
    assert ticket is not None
    assert room.waiting(B) == 0
    assert not room.leave(last)
    assert room.enter(claim(11.0, 95), blocks=1) == (None, None)
    assert {one, other, ticket} <= set(room.leading(A, 9))


def test_within_a_priority_the_place_of_who_holds_more_for_its_weight_is_taken() -> None:
    room = WaitList(4)
    hog = [entered(room, claim(float(number), tenant="hog")) for number in range(4)]
    first, displaced = room.enter(claim(9.0, tenant="quiet"), blocks=1)
    assert (first is not None, displaced) == (True, hog[3])
    second, displaced = room.enter(claim(9.5, tenant="quiet"), blocks=1)
    assert (second is not None, displaced) == (True, hog[2])
    assert room.enter(claim(9.6, tenant="quiet"), blocks=1) == (None, None)
    heavy, displaced = room.enter(claim(9.7, tenant="heavy", weight=200), blocks=1)
    assert heavy is not None
    assert displaced in {hog[1], second}


def test_blocks_before_a_request_are_those_of_who_starts_earlier() -> None:
    room = WaitList(99)
    for number in range(10):
        room.enter(claim(float(number), tenant="hog"), blocks=3, tokens=100)
    assert room.blocks_before(claim(99.0, tenant="hog")) == 30
    assert room.blocks_before(claim(99.0, tenant="quiet")) == 0
    room.enter(claim(99.0, tenant="quiet"), blocks=1, tokens=250)
    assert room.blocks_before(claim(99.5, tenant="quiet")) == 1 + 9
    assert room.blocks_before(claim(99.5, 90, tenant="late")) == 31
    assert room.blocks_before(claim(99.5, 0, tenant="early")) == 0


def told(steps: list[tuple[str, str, int, int]]) -> list[object]:
    """What a room answers after each of some steps: what is done, the tenant, the priority, and tokens."""
    room, under_way, answers = WaitList(6), list[Claim](), list[object]()
    for number, (step, tenant, priority, tokens) in enumerate(steps):
        asked = claim(float(number), priority, tenant)
        if step == "enter":
            answers.append(room.enter(asked, blocks=1, tokens=tokens))
        elif step == "leave" and (first := room.first(A)) is not None:
            answers.append(room.leave(first))
        elif step == "begin":
            room.began(asked, tokens)
            under_way.append(asked)
        elif step == "end":
            room.ended(under_way.pop(0) if under_way else asked, tokens - 1)
        answers += room.first(A), room.leading(A, 9), room.wanted(A), list(room.fleets())
        for other in ("a", "b", "new"):
            later = claim(99.0, priority, other)
            answers += room.before(later), room.under(later), room.blocks_before(later)
    return answers


STEP = st.tuples(
    st.sampled_from(["enter", "leave", "begin", "end"]),
    st.sampled_from("ab"),
    st.sampled_from([10, 50]),
    st.sampled_from([1, 900, 20_000]),
)


@given(st.lists(STEP, max_size=30))
def test_who_is_kept_though_nothing_waits_or_runs_counts_as_new(steps: list[tuple[str, str, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(queue_order, "MAX_EMPTY", 0)
        forgetting = told(steps)
    assert told(steps) == forgetting


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
    def enter(self, fleet: Fleet, priority: int, arrived: int, blocks: int) -> None:
        ticket, displaced = self.room.enter(claim(arrived, priority, fleet=fleet), blocks=blocks)
        full = len(self.inside) == self.places
        lower = sorted(t for t in self.inside if t.priority > priority)
        assert (ticket is None) == (full and not lower)
        assert (displaced is None) == (ticket is None or not full)
        if displaced is not None:
            assert displaced == lower[-1]
            self.inside.remove(displaced)
            self.outside.append(displaced)
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
    def serve(self, fleet: Fleet) -> None:
        first = self.room.first(fleet)
        if first is not None:
            self.room.began(first.claim, first.tokens)
            assert self.room.leave(first)
            self.room.ended(first.claim, 0)
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
            line = sorted(t for t in self.inside if t.fleet == fleet)
            assert self.room.leading(fleet, 99) == line
            assert self.room.first(fleet) == (line[0] if line else None)
            assert self.room.wanted(fleet) == sum(ticket.blocks for ticket in line)
            assert self.room.waiting(fleet) == len(line)
            assert self.room.before(claim(1.0, 1, fleet=fleet)) == any((t.priority, t.arrived) <= (1, 1) for t in line)


TestRoom = RoomMachine.TestCase
TestRoom.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)
