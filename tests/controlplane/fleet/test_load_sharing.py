"""Replicas know of each other's requests in flight as of their own, each once, until a replica is silent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from cachefleet_controlplane.routing.decision import CandidateScore, Knowledge, Prompt, Reason
from cachefleet_core.block_keys import pack_keys
from cachefleet_core.report_fields import Flight
from cachefleet_core.report_frames import FrameError, Loads, Share, SharedLoad
from tests.controlplane.chains import chain
from tests.controlplane.fleet.replicas_in_time import Replica, Replicas
from tests.controlplane.fleet.test_fleet_worth import BUSY, HOT
from tests.controlplane.fleets import MODEL, fleet_of
from tests.reference.sharing import SILENT_SECONDS

LOAD: dict[str, Any] = {
    "blocks_total": 4000,
    "blocks_free": 4000,
    "blocks_idle": 4000,
    "prefill_tokens_per_second": 1000.0,
}


def prompt(seed: int = 1, blocks: int = 100, tail: int = 0) -> Prompt:
    keys = chain(seed, blocks) + (chain(1000 + tail, 2) if tail else [])
    return Prompt(len(keys) * 16 + 1, pack_keys(keys), 16, 16, Knowledge.EXACT)


def send(replica: Replica, asked: Prompt) -> Any:
    return replica.fleet.begin(replica.fleet.route(MODEL, asked), asked)


def score(replica: Replica, worker: str, asked: Prompt | None = None) -> CandidateScore:
    scores = replica.fleet.route(MODEL, asked or prompt(99)).scores
    return next(one for one in scores if one.worker == worker)


class TestOneOfTwo:
    @pytest.fixture
    def replicas(self) -> Replicas:
        return Replicas(**LOAD)

    def test_what_one_has_sent_the_other_counts_as_its_own(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        request = send(one, prompt())
        before = score(other, "demo-0")
        assert (before.inflight_tokens, before.requests) == (0, 0)
        replicas.exchange()
        for replica in (one, other):
            told = score(replica, "demo-0")
            assert (told.inflight_tokens, told.queued_tokens, told.requests) == (1601, 0, 1)
            assert told.free_blocks == 4000 - 1 - 102 - score(replica, "demo-0").reserved_blocks
            assert replica.fleet.route(MODEL, prompt(99)).worker == "demo-1"
        asked = other.fleet.route(MODEL, prompt(tail=1))
        assert (asked.worker, asked.reason) == ("demo-0", Reason.PREFIX_IN_FLIGHT)
        request.first_token()
        replicas.exchange()
        assert (score(other, "demo-0").inflight_tokens, score(other, "demo-0").requests) == (0, 1)
        request.finish(cached_tokens=0)
        replicas.exchange()
        assert score(other, "demo-0").requests == 0
        assert other.own("demo-0", replicas.now) == (0, 0)

    def test_cold_prompts_of_both_spread(self, replicas: Replicas) -> None:
        """Among equals the worker goes first that neither has used lately."""
        one, other = replicas.alive
        sent = []
        for number in range(6):
            asked = Prompt(17, pack_keys(chain(number + 50, 1)), 16, 16, Knowledge.EXACT)
            replica = (one, other)[number % 2]
            decision = replica.fleet.route(MODEL, asked)
            replica.fleet.begin(decision, asked).finish(cached_tokens=0)
            sent.append(decision.worker)
        assert sent == ["demo-0", "demo-0", "demo-1", "demo-1", "demo-0", "demo-0"]
        sent.clear()
        for number in range(6):
            replica, asked = (one, other)[number % 2], prompt(number + 80, 1)
            decision = replica.fleet.route(MODEL, asked)
            request = replica.fleet.begin(decision, asked)
            replicas.exchange()
            request.finish(cached_tokens=0)
            replicas.exchange()
            sent.append(decision.worker)
        assert sent in (["demo-0", "demo-1"] * 3, ["demo-1", "demo-0"] * 3)

    def test_what_a_report_counts_is_not_counted_again(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        send(one, prompt())
        replicas.exchange()
        replicas.report("demo-0", waiting=1, waiting_tokens=1601)
        for replica in (one, other):
            told = score(replica, "demo-0")
            assert (told.queued_tokens, told.inflight_tokens, told.requests) == (0, 1601, 1)
        replicas.report("demo-0", waiting=3, waiting_tokens=2000)  # somebody else's, too
        told = score(other, "demo-0")
        assert (told.queued_tokens, told.inflight_tokens, told.requests) == (399, 1601, 3)

    @pytest.mark.parametrize("tokens", [1601, None], ids=["told", "not told"])
    def test_nor_where_the_report_comes_first(self, replicas: Replicas, tokens: int | None) -> None:
        one, other = replicas.alive
        send(one, prompt())
        replicas.wait(0.01)
        replicas.report("demo-0", waiting=1, waiting_tokens=tokens)
        assert score(other, "demo-0").queued_tokens == tokens or 512
        replicas.wait(0.01)
        replicas.exchange()
        told = score(other, "demo-0")
        assert (told.queued_tokens, told.inflight_tokens, told.requests) == (0, 1601, 1)

    def test_what_is_lost_heals_with_the_next_report(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        first, second = send(one, prompt(1)), send(one, prompt(2))
        assert [first.blocks, second.blocks] == [102, 102]
        replicas.exchange()
        first.finish(cached_tokens=0)
        third = send(one, prompt(3, blocks=50))
        assert replicas.exchange(lost=True)
        assert not replicas.exchange()
        told = {name: other.row(name).elsewhere(replicas.now) for name in replicas.workers}
        assert told != {name: one.own(name, replicas.now) for name in replicas.workers}
        replicas.wait(0.5)
        replicas.report()
        replicas.exchange()
        told = {name: other.row(name).elsewhere(replicas.now) for name in replicas.workers}
        assert told == {name: one.own(name, replicas.now) for name in replicas.workers}
        second.finish()
        third.finish()

    def test_also_where_no_report_comes(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        send(one, prompt(1))
        replicas.exchange(lost=True)
        replicas.wait(1.1)
        assert replicas.exchange() == 1
        assert other.row("demo-0").elsewhere(replicas.now) == (1, 1601)

    def test_one_that_is_silent_is_gone_in_three_seconds_and_welcome_again(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        send(one, prompt())
        replicas.exchange()
        replicas.die(one)
        replicas.wait(2.9)
        assert score(other, "demo-0").requests == 1
        replicas.wait(0.1)
        assert (score(other, "demo-0").requests, score(other, "demo-0").inflight_tokens) == (0, 0)
        assert SILENT_SECONDS == 3.0
        replicas.join()
        assert [one for one in other.links["demo-0"].sent if isinstance(one, Share)] == [Share(other.origin)]
        send(replicas.alive[-1], prompt())
        replicas.exchange()
        assert score(other, "demo-0").requests == 1

    def test_one_that_goes_is_gone_at_once(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        send(one, prompt())
        replicas.exchange()
        replicas.pass_on(one, "demo-0", SharedLoad(origin=one.origin, whole=True))  # as its agent says then
        assert score(other, "demo-0").requests == 0

    def test_one_that_comes_is_told_of_all_and_of_their_blocks(self, replicas: Replicas) -> None:
        send(replicas.alive[0], prompt())
        replicas.exchange()
        third = replicas.join()
        replicas.exchange()
        asked = third.fleet.route(MODEL, prompt(tail=1))
        assert (asked.worker, asked.reason) == ("demo-0", Reason.PREFIX_IN_FLIGHT)

    def test_only_keys_that_nobody_can_know_yet_are_told(self, replicas: Replicas) -> None:
        one = replicas.alive[0]
        send(one, prompt(blocks=100))
        send(one, prompt(blocks=100, tail=5))
        one.fleet.tell_others()
        [(_, load)] = one.said()
        assert [(flight.skip, len(flight.keys) // 8) for flight in map(as_flight, load.flights)] == [(0, 100), (100, 2)]
        replicas.report()
        one.fleet.tell_others()
        [(_, load)] = one.said()
        assert load.whole
        assert [len(as_flight(flight).keys) for flight in load.flights] == [0, 0]

    def test_a_failed_ones_blocks_are_expected_no_more(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        request = send(one, prompt())
        replicas.exchange()
        request.finish()
        replicas.exchange()
        assert other.fleet.route(MODEL, prompt(tail=1)).reason is Reason.COLD

    def test_who_waits_for_room_hears_that_one_is_over_elsewhere(self, replicas: Replicas) -> None:
        one, other = replicas.alive
        request, changes = send(one, prompt()), list[int]()
        replicas.exchange()
        other.fleet.listen(lambda: changes.append(1))
        request.first_token()
        replicas.exchange()
        assert changes == []
        request.finish(cached_tokens=0)
        replicas.exchange()
        assert changes == [1]

    def test_keys_that_are_none_are_refused(self, replicas: Replicas) -> None:
        flight = Flight(1, 0.0, *(True, 1, 1, 1, 1, 0, 0, b"123"))
        with pytest.raises(FrameError, match="loads"):
            replicas.alive[0].fleet.hear(
                replicas.alive[0].links["demo-0"].connection, Loads((SharedLoad(origin="x", flights=(flight,)),))
            )

    def test_an_echo_is_not_heard(self, replicas: Replicas) -> None:
        one = replicas.alive[0]
        send(one, prompt())
        one.fleet.tell_others()
        [(worker, load)] = one.said()
        one.fleet.hear(one.links[worker].connection, Loads((load,)))
        assert score(one, "demo-0").requests == 1


def as_flight(told: Any) -> Flight:
    """Frames are made of native code's tuples."""
    return Flight(*told)


def test_a_copy_that_one_has_paid_for_the_others_do_not_pay_for_again() -> None:
    """Waiting adds up over replicas, and the copy of one is that of all."""

    def copies(count: int) -> list[str]:
        replicas = Replicas(count, **LOAD)
        for replica in replicas.alive:
            replica.links["demo-0"] = replica.fleet.report("demo-0", HOT, shares=True, epoch="e2", **LOAD)
            replica.read["demo-0"] = 0
        for _ in range(3):
            replicas.report("demo-0", held=len(HOT))
            replicas.report("demo-1")
        for replica in replicas.alive:
            for worker in replica.fleet._registry.workers():
                worker.weigh(BUSY)
            for pool in replica.fleet._registry.pools.values():
                pool.worth.tell(2, replica.fleet.now)
        sent = []
        for number in range(60):
            keys = HOT + chain(100 + number, 2)
            asked = Prompt(len(keys) * 16 + 1, pack_keys(keys), 16, 16, Knowledge.EXACT)
            replica = replicas.alive[number % count]
            decision = replica.fleet.route(MODEL, asked)
            replica.fleet.begin(decision, asked)
            replicas.exchange()
            sent.append(decision.worker)
        return sent

    alone = copies(1)
    assert "demo-1" in alone
    assert copies(2) == copies(3) == alone


def test_one_replica_alone_tells_nothing() -> None:
    replicas = Replicas(1, **LOAD)
    [one] = replicas.alive
    for number in range(5):
        send(one, prompt(number)).finish()
        replicas.report()
        assert replicas.exchange() == 0
        replicas.wait(1.0)


def test_an_agent_that_passes_nothing_on_is_not_asked_to() -> None:
    fleet = fleet_of("demo-0")
    link = fleet.report("demo-0", **LOAD)
    assert not [frame for frame in link.sent if isinstance(frame, Share)]
    asked = prompt()
    fleet.begin(fleet.route(MODEL, asked), asked)
    assert not fleet.tell_others()


WORKERS = ("demo-0", "demo-1", "demo-2")
indexes = st.integers(0, 99)


class SharingMachine(RuleBasedStateMachine):
    """Whatever is lost: after the next report each has of every other what that one has, and no more than that."""

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.replicas = Replicas(count, WORKERS, **LOAD)
        self.open: list[tuple[Replica, Any]] = []

    def one(self, which: int) -> Replica:
        return self.replicas.alive[which % len(self.replicas.alive)]

    @rule(which=indexes, seed=st.integers(1, 4), blocks=st.integers(0, 40))
    def send(self, which: int, seed: int, blocks: int) -> None:
        replica, asked = self.one(which), prompt(seed, blocks)
        decision = replica.fleet.route(MODEL, asked)
        if decision.worker:
            self.open.append((replica, replica.fleet.begin(decision, asked)))

    @precondition(lambda self: self.open)
    @rule(which=indexes)
    def first_token(self, which: int) -> None:
        self.open[which % len(self.open)][1].first_token()

    @precondition(lambda self: self.open)
    @rule(which=indexes, cached=st.sampled_from([None, 0]))
    def finish(self, which: int, cached: int | None) -> None:
        self.open.pop(which % len(self.open))[1].finish(cached_tokens=cached)

    @rule(lost=st.sampled_from([False, False, True]))
    def exchange(self, *, lost: bool) -> None:
        self.replicas.exchange(lost=lost)

    @rule(seconds=st.sampled_from([0.02, 0.4, 1.0, 2.0]))
    def wait(self, seconds: float) -> None:
        self.replicas.wait(seconds)

    @precondition(lambda self: len(self.replicas.alive) < 5)
    @rule()
    def join(self) -> None:
        self.replicas.join()

    @precondition(lambda self: len(self.replicas.alive) > 2)
    @rule(which=indexes)
    def kill(self, which: int) -> None:
        killed = self.one(which)
        self.open = [(replica, request) for replica, request in self.open if replica is not killed]
        self.replicas.die(killed)

    @rule()
    def settle(self) -> None:
        """All agents have reported, and who is silent has been so for long."""
        for _ in range(3):
            self.replicas.wait(1.0)
            self.replicas.report()
            self.replicas.exchange()
        now = self.replicas.now
        for replica in self.replicas.alive:
            others = [other for other in self.replicas.alive if other is not replica]
            for worker in WORKERS:
                theirs = [other.own(worker, now) for other in others]
                requests, tokens = replica.row(worker).elsewhere(now)
                assert requests == sum(own for own, _ in theirs)
                assert tokens <= sum(own for _, own in theirs)  # blocks that it computes itself count once


TestSharing = SharingMachine.TestCase
TestSharing.settings = settings(max_examples=settings().max_examples, stateful_step_count=40, deadline=None)
