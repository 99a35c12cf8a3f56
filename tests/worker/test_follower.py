from __future__ import annotations

import pytest

from cachefleet_worker.agent.epoch import Limits
from cachefleet_worker.agent.follower import Follower
from cachefleet_worker.agent.signals import (
    Apply,
    Ask,
    Count,
    Effect,
    Forget,
    Live,
    NewEpoch,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    Restarted,
    Seq,
    Tick,
    Ticket,
    read_live,
    read_reply,
    replay_request,
)
from cachefleet_worker.agent.state import Phase

LIMITS = Limits(
    held_batches=4, held_bytes=1000, attempts=2, retry_seconds=1.0, probe_seconds=5.0, first_probe_seconds=0.5
)


def payload(seq: int, process: str = "a") -> bytes:
    return f"{process}{seq}".encode()


class Driver:
    """A follower with its effects in the order they came."""

    def __init__(self, *, replay: bool = True) -> None:
        self.follower = Follower(replay=replay, limits=LIMITS)
        self.now = 100.0
        self.effects: list[Effect] = self.follower.start(self.now)

    def step(self, *events: object) -> list[Effect]:
        new: list[Effect] = []
        for event in events:
            new += self.follower.step(event, self.now)  # type: ignore[arg-type]
        self.effects += new
        return new

    def live(self, *seqs: int, process: str = "a") -> list[Effect]:
        return self.step(*(Live(Seq(seq), payload(seq, process)) for seq in seqs))

    def reply(self, *seqs: int, end: bool = True, process: str = "a") -> list[Effect]:
        ticket = self.ticket
        effects = self.step(*(Replayed(ticket, Seq(seq), payload(seq, process)) for seq in seqs))
        return effects + (self.step(ReplayEnded(ticket)) if end else [])

    def fail(self) -> list[Effect]:
        return self.step(ReplayFailed(self.ticket))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.step(Tick())

    @property
    def ticket(self) -> Ticket:
        return self.asks[-1].ticket

    @property
    def asks(self) -> list[Ask]:
        return [effect for effect in self.effects if isinstance(effect, Ask)]

    @property
    def applied(self) -> list[int]:
        return [effect.seq for effect in self.effects if isinstance(effect, Apply)]

    def counted(self, what: str) -> int:
        return self.effects.count(Count(what))  # type: ignore[arg-type]


@pytest.fixture
def driver() -> Driver:
    """Caught up at batch 2."""
    driver = Driver()
    driver.reply(0, 1, 2)
    return driver


def test_an_epoch_begins_with_a_replay_from_0() -> None:
    driver = Driver()
    assert [ask.start for ask in driver.asks] == [0]
    driver.live(5)
    assert driver.applied == []
    driver.reply(0, 1, 2, 3, 4, 5)
    assert driver.applied == [0, 1, 2, 3, 4, 5]
    assert driver.follower.phase is Phase.FOLLOWING


def test_live_batches_are_applied_as_they_come(driver: Driver) -> None:
    driver.live(3, 4)
    assert driver.applied == [0, 1, 2, 3, 4]


def test_a_gap_is_filled_in_order_with_live_batches_held_back(driver: Driver) -> None:
    driver.live(5, 6)
    assert driver.applied == [0, 1, 2]
    assert driver.asks[-1].start == 3
    assert driver.follower.held_back == 2
    driver.reply(3, 4, 5, 6, 7)
    driver.live(7, 8)
    assert driver.applied == list(range(9))
    assert driver.counted("gaps") == 1
    assert driver.counted("duplicates") == 1


def test_only_one_request_is_out_for_a_gap(driver: Driver) -> None:
    asks = len(driver.asks)
    driver.live(5, 6, 7, 9)
    assert len(driver.asks) == asks + 1


def test_a_replay_that_begins_too_late_forgets_and_goes_on_from_there(driver: Driver) -> None:
    driver.live(20)
    effects = driver.reply(15, 16, 17, 18, 19, 20)
    assert effects[0] == Forget(12)
    assert driver.applied == [0, 1, 2, 15, 16, 17, 18, 19, 20]
    assert driver.follower.settled


def test_what_was_held_back_after_the_loss_is_kept(driver: Driver) -> None:
    driver.live(5, 6)
    driver.reply(7, 8)
    assert driver.applied == [0, 1, 2, 5, 6, 7, 8]


def test_a_late_start_forgets_nothing() -> None:
    driver = Driver()
    driver.reply(50, 51)
    assert driver.applied == [50, 51]
    assert driver.counted("late_starts") == 1
    assert not any(isinstance(effect, Forget) for effect in driver.effects)


def test_a_hole_inside_a_replay_is_asked_for_again(driver: Driver) -> None:
    driver.live(9)
    driver.reply(3, 4, 7)
    assert driver.asks[-1].start == 5
    driver.reply(5, 6, 7, 8, 9)
    assert driver.applied == list(range(10))


def test_a_replay_without_its_end_is_continued(driver: Driver) -> None:
    driver.live(9)
    driver.reply(3, 4, end=False)
    driver.fail()
    assert driver.asks[-1].start == 5
    driver.reply(5, 6, 7, 8)
    assert driver.applied == list(range(10))


def test_a_gap_that_is_never_answered_is_given_up(driver: Driver) -> None:
    driver.live(5)
    driver.fail()
    assert driver.follower.phase is Phase.WAITING
    assert driver.wait(0.5) == []
    driver.wait(0.6)
    effects = driver.fail()
    assert Forget(2) in effects
    assert driver.applied[-1] == 5
    driver.live(6)
    assert driver.applied[-1] == 6


def test_a_gap_that_replays_never_contain_is_given_up(driver: Driver) -> None:
    driver.live(5)
    driver.reply()
    driver.wait(2.0)
    assert Forget(2) in driver.reply()
    assert driver.applied[-1] == 5


def test_without_a_replay_socket_a_gap_is_a_loss() -> None:
    driver = Driver(replay=False)
    driver.live(4, 5)
    assert driver.live(8) == [Count("gaps"), Forget(2), Apply(Seq(8), payload(8))]
    assert driver.asks == []
    assert driver.applied == [4, 5, 8]
    assert driver.wait(100.0) == []


def test_a_silent_tail_is_asked_for(driver: Driver) -> None:
    driver.wait(1.0)  # the early probe after catching up
    assert driver.asks[-1].start == 3
    driver.reply()
    assert driver.wait(4.0) == []
    driver.wait(1.1)
    driver.reply(3, 4)
    assert driver.applied == [0, 1, 2, 3, 4]
    assert driver.counted("probes") == 2


def test_live_batches_pass_a_probe(driver: Driver) -> None:
    driver.wait(1.0)
    driver.live(3, 4)
    assert driver.applied[-1] == 4
    driver.live(6)
    assert driver.follower.phase is Phase.FILLING
    driver.reply(3, 4, 5)
    assert driver.applied == list(range(7))


def test_an_unanswered_probe_ends_nothing(driver: Driver) -> None:
    driver.wait(1.0)
    driver.fail()
    driver.live(3)
    assert driver.applied[-1] == 3
    assert not any(isinstance(effect, Forget | NewEpoch) for effect in driver.effects)


@pytest.mark.parametrize("seq", [0, 1, 2])
def test_a_number_that_does_not_rise_is_another_process(driver: Driver, seq: int) -> None:
    effects = driver.live(seq, process="b")
    assert effects[0] == NewEpoch("sequence")
    assert driver.asks[-1].start == 0
    driver.reply(*range(seq + 1), process="b")
    assert driver.follower.next_seq == seq + 1


def test_an_exact_duplicate_is_not(driver: Driver) -> None:
    driver.live(5)
    assert driver.live(1, 2, 5) == [Count("duplicates")] * 3


def test_a_number_below_one_that_is_held_back_is_another_process(driver: Driver) -> None:
    driver.live(9)
    assert driver.live(6, process="b")[0] == NewEpoch("sequence")


def test_a_replay_that_contradicts_is_another_process(driver: Driver) -> None:
    driver.live(5)
    assert driver.reply(2, end=False, process="b") == [NewEpoch("sequence"), *driver.effects[-2:]]
    driver = Driver()
    driver.live(5)
    assert NewEpoch("sequence") in driver.reply(0, 5, end=False, process="b")


def test_a_restart_known_from_elsewhere_begins_anew(driver: Driver) -> None:
    driver.live(5)
    effects = driver.step(Restarted("disconnected"))
    assert effects[0] == NewEpoch("disconnected")
    assert driver.follower.held_back == 0
    assert driver.follower.next_seq == 0


def test_answers_to_an_earlier_request_change_nothing(driver: Driver) -> None:
    old = driver.ticket
    driver.step(Restarted("disconnected"))
    assert driver.step(Replayed(old, Seq(0), b"x"), ReplayEnded(old), ReplayFailed(old)) == [Count("stale_replies")] * 3


def test_what_is_held_back_is_bounded_and_asked_for_again(driver: Driver) -> None:
    driver.live(5, 6, 7, 8, 9, 10)
    assert driver.follower.held_back == LIMITS.held_batches
    assert driver.counted("held_back_overflows") == 2
    driver.reply(3, 4, 5, 6, 7, 8, 9, 10)
    assert driver.applied == list(range(11))


def test_held_bytes_are_bounded(driver: Driver) -> None:
    driver.step(Live(Seq(5), b"x" * 900), Live(Seq(6), b"y" * 200))
    assert driver.follower.held_back == 1
    driver.reply(3, 4, end=False)
    assert driver.step(Live(Seq(7), b"z" * 2000)) == [Count("held_back_overflows")]


def test_frames_are_read_and_written() -> None:
    assert read_live([b"topic", (7).to_bytes(8, "big"), b"p"]) == Live(Seq(7), b"p")
    assert read_live([b"topic", b"short", b"p"]) is None
    assert read_live([b"topic"]) is None
    ticket = Ticket(3)
    assert read_reply([b"", b"t", (7).to_bytes(8, "big"), b"p"], ticket) == Replayed(ticket, Seq(7), b"p")
    assert read_reply([b"", b"", (-1).to_bytes(8, "big", signed=True), b""], ticket) == ReplayEnded(ticket)
    assert read_reply([b"x"], ticket) is None
    assert replay_request(Seq(258)) == [b"", b"\0\0\0\0\0\0\1\2"]
