from __future__ import annotations

import itertools

import pytest

from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.follower_state import Phase
from cachefleet_worker.agent.engines.vllm.events.messages import (
    Apply,
    Count,
    Effect,
    Forget,
    Live,
    Marked,
    NewEpoch,
    PeekMark,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    RequestReplay,
    RequestSnapshot,
    Restarted,
    Restore,
    Seq,
    Snapped,
    SnapshotFailed,
    Tick,
    Ticket,
    UnreadableBatch,
    read_live,
    read_reply,
    replay_request,
)

LIMITS = Limits(
    held_batches=4,
    held_bytes=1000,
    attempts=2,
    retry_seconds=1.0,
    probe_seconds=5.0,
    first_probe_seconds=0.5,
    restore_base_seconds=1.0,
    restore_cap_seconds=100.0,
    restore_retry_seconds=30.0,
    unproven_seconds=5.0,
)


def payload(seq: int, process: str = "a") -> bytes:
    return f"{process}{seq}".encode()


class Driver:
    """A follower with its effects in the order they came."""

    def __init__(self, *, replay: bool = True, snapshots: bool = False, boot: str = "boot") -> None:
        self.follower = Follower(replay=replay, snapshots=snapshots, boot=boot, limits=LIMITS)
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

    def snapshot(self, seq: int, boot: str = "boot") -> list[Effect]:
        return self.step(Snapped(self.snapshots[-1].ticket, Seq(seq), boot))

    def fail_snapshots(self, count: int = LIMITS.attempts) -> list[Effect]:
        effects: list[Effect] = []
        for _ in range(count):
            self.wait(LIMITS.retry_seconds)
            effects = self.step(SnapshotFailed(self.snapshots[-1].ticket))
        return effects

    def mark(self, *, agrees: bool | None = True, boot: str = "boot") -> list[Effect]:
        return self.step(Marked(boot, agrees))

    def wait(self, seconds: float) -> list[Effect]:
        self.now += seconds
        return self.step(Tick())

    @property
    def ticket(self) -> Ticket:
        return self.asks[-1].ticket

    @property
    def asks(self) -> list[RequestReplay]:
        return [effect for effect in self.effects if isinstance(effect, RequestReplay)]

    @property
    def snapshots(self) -> list[RequestSnapshot]:
        return [effect for effect in self.effects if isinstance(effect, RequestSnapshot)]

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


def test_batches_that_wait_in_the_agents_own_socket_are_no_loss(driver: Driver) -> None:
    """The engine's replay has forgotten them long since, and the agent has only not come to read them."""
    driver.wait(1.0)
    assert driver.reply(15, 16, 17) == [Count("late_replays"), *3 * [Count("stale_replies")]]
    driver.live(*range(3, 21))
    driver.wait(LIMITS.retry_seconds)
    assert driver.asks[-1].start == 21
    driver.reply()
    assert driver.applied == list(range(21))
    assert driver.follower.settled
    assert not any(isinstance(effect, Forget | NewEpoch) for effect in driver.effects)


def test_a_lag_is_waited_for_as_long_as_it_becomes_less(driver: Driver) -> None:
    driver.wait(1.0)
    for seq in range(3, 9):
        driver.reply(15, 16, end=False)
        driver.live(seq)
        driver.wait(LIMITS.retry_seconds)
    assert driver.applied == list(range(9))


def test_a_lag_that_does_not_end_is_a_loss_and_what_comes_late_no_restart(driver: Driver) -> None:
    driver.wait(1.0)
    driver.reply(15, 16, end=False)
    driver.wait(LIMITS.retry_seconds)
    assert driver.reply(15, 16)[0] == Forget(12)
    assert driver.live(3) == [Count("late_batches"), PeekMark(payload(3))]
    driver.live(15, 16, 17)
    assert driver.applied == [0, 1, 2, 15, 16, 17]
    assert not any(isinstance(effect, NewEpoch) for effect in driver.effects)


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


@pytest.fixture
def restored() -> Driver:
    """With a plugin, caught up at batch 2 by a snapshot that proved good."""
    driver = Driver(snapshots=True)
    driver.snapshot(2)
    driver.mark()
    return driver


def forgotten(effects: list[Effect]) -> bool:
    return any(isinstance(effect, Forget) for effect in effects)


def test_with_a_plugin_an_epoch_begins_with_a_snapshot() -> None:
    driver = Driver(snapshots=True)
    assert driver.effects == [RequestSnapshot(Ticket(1))]
    assert driver.live(5, 6, 7) == []
    assert driver.snapshot(5) == [
        Count("snapshots"),
        Restore(Seq(5)),
        Apply(Seq(6), payload(6)),
        Apply(Seq(7), payload(7)),
    ]
    assert driver.follower.phase is Phase.FOLLOWING
    assert driver.follower.whole
    assert driver.asks == []


def test_a_snapshot_of_an_engine_that_has_published_nothing_is_one() -> None:
    driver = Driver(snapshots=True)
    assert driver.snapshot(-1) == [Count("snapshots"), Restore(Seq(-1))]
    assert driver.live(0) == [Apply(Seq(0), payload(0))]


def test_what_came_between_snapshot_and_subscription_is_replayed(restored: Driver) -> None:
    restored.live(5)
    assert restored.asks[-1].start == 3
    restored.reply(3, 4, 5)
    assert restored.applied == [3, 4, 5]
    driver = Driver(snapshots=True)
    driver.live(5)
    assert driver.snapshot(2)[-1] == RequestReplay(Ticket(2), Seq(3))


def test_batches_that_a_snapshot_overtook_are_passed_over(restored: Driver) -> None:
    assert restored.live(1, 2) == [
        effect for seq in (1, 2) for effect in (Count("late_batches"), PeekMark(payload(seq)))
    ]
    assert restored.live(1) == [Count("duplicates")]
    assert restored.live(3) == [Apply(Seq(3), payload(3))]


def test_a_late_number_of_another_process_is_a_restart(restored: Driver) -> None:
    restored.live(1)
    assert restored.live(0, process="b")[0] == NewEpoch("sequence")


def test_a_loss_beyond_replay_is_healed_by_a_snapshot_and_forgets_nothing(restored: Driver) -> None:
    restored.wait(2.0)
    restored.live(20)
    effects = restored.reply(15, 16, end=False)
    assert effects == [RequestSnapshot(Ticket(3)), Count("stale_replies")]
    assert not restored.follower.settled
    restored.live(21)
    assert restored.snapshot(20) == [Count("snapshots"), Restore(Seq(20)), Apply(Seq(21), payload(21))]
    assert not forgotten(restored.effects)


def test_a_gap_that_no_replay_fills_is_healed_by_a_snapshot(restored: Driver) -> None:
    restored.wait(2.0)
    restored.reply()
    restored.live(5)
    restored.fail()
    restored.wait(1.0)
    assert restored.fail()[-1] == RequestSnapshot(Ticket(5))
    driver = Driver(replay=False, snapshots=True)
    driver.snapshot(2)
    driver.now += 2.0
    assert driver.live(5) == [Count("gaps"), RequestSnapshot(Ticket(2))]


def test_a_batch_that_cannot_be_read_is_healed_by_a_snapshot(restored: Driver, driver: Driver) -> None:
    assert driver.step(UnreadableBatch()) == [Forget(0)]
    restored.wait(2.0)
    restored.reply()
    assert restored.step(UnreadableBatch()) == [RequestSnapshot(Ticket(3))]
    assert restored.snapshot(3)[1] == Restore(Seq(3))


def test_sums_that_differ_are_healed_by_a_snapshot(restored: Driver) -> None:
    restored.wait(2.0)
    restored.reply()
    assert restored.mark(agrees=False) == [Count("divergences"), RequestSnapshot(Ticket(3))]
    restored.snapshot(4)
    assert restored.mark() == []
    assert restored.follower.whole


def test_stock_engines_are_not_asked_for_snapshots(driver: Driver) -> None:
    assert driver.mark(agrees=False) == []
    driver.live(20)
    assert forgotten(driver.reply(15, 16, 17, 18, 19, 20))
    assert driver.snapshots == []


def test_snapshots_that_prove_nothing_come_in_growing_distances() -> None:
    driver = Driver(snapshots=True)
    times: list[float] = []
    driver.snapshot(0)
    while len(times) < 12:
        asked = len(driver.snapshots)
        driver.mark(agrees=False)
        driver.wait(0.5)
        if len(driver.snapshots) > asked:
            times.append(driver.now)
            driver.snapshot(0)
    distances = [after - before for before, after in itertools.pairwise(times)]
    assert distances == sorted(distances)
    assert distances[0] <= 4.0
    assert distances[-1] == pytest.approx(100.0, abs=1.0)


def test_a_snapshot_proven_good_makes_the_next_one_prompt() -> None:
    driver = Driver(snapshots=True)
    for _ in range(8):
        driver.snapshot(0)
        driver.mark()
        driver.wait(1.5)
        assert isinstance(driver.mark(agrees=False)[-1], RequestSnapshot)


def test_a_loss_soon_after_a_snapshot_waits_for_the_next(restored: Driver) -> None:
    restored.live(20)
    assert restored.reply(15, end=False) == []
    assert restored.follower.phase == Phase.PAUSING
    restored.live(21)
    assert restored.wait(1.1) == [RequestSnapshot(Ticket(3))]
    restored.snapshot(21)
    assert restored.follower.settled


def test_a_loss_long_before_the_next_snapshot_forgets_and_asks_then(restored: Driver) -> None:
    for seq in (20, 40):  # each unproven
        restored.now += 5.0
        restored.live(seq)
        restored.reply(seq - 1, end=False)
        restored.snapshot(seq)
    restored.now += 0.5
    restored.live(60)
    assert forgotten(restored.reply(58, 59))
    assert not restored.follower.whole
    assert restored.wait(4.0)[-1] == RequestSnapshot(restored.snapshots[-1].ticket)


def test_another_boot_id_is_another_process(restored: Driver) -> None:
    assert restored.mark(boot="other")[0] == NewEpoch("boot")
    assert restored.snapshot(7, boot="other")[1] == Restore(Seq(7))  # the first told is believed
    driver = Driver(snapshots=True)
    driver.live(0)
    assert driver.snapshot(7, boot="other")[0] == NewEpoch("boot")
    assert driver.follower.held_back == 0


def test_marks_of_a_stock_looking_stream_tell_restarts_too(driver: Driver) -> None:
    assert driver.mark(agrees=None) == []
    assert driver.mark(agrees=None, boot="other")[0] == NewEpoch("boot")


def test_without_a_first_snapshot_all_is_as_with_stock_vllm() -> None:
    driver = Driver(snapshots=True)
    driver.live(3)
    assert driver.fail_snapshots()[-1] == RequestReplay(Ticket(3), Seq(0))
    driver.reply(2, 3)
    assert driver.applied == [2, 3]
    assert driver.counted("late_starts") == 1
    wholes = [driver.follower.whole]
    asked = len(driver.snapshots)
    driver.wait(10.0)
    driver.reply()
    assert len(driver.snapshots) == asked
    driver.wait(21.0)
    assert len(driver.snapshots) == asked + 1
    driver.snapshot(3)
    assert [*wholes, driver.follower.whole] == [False, True]
    assert not forgotten(driver.effects)


def test_without_any_way_back_what_is_held_is_forgotten(restored: Driver) -> None:
    restored.wait(2.0)
    restored.live(20)
    restored.reply(15, end=False)
    effects = restored.fail_snapshots()
    assert effects == [Count("snapshot_failures"), Forget(12), Apply(Seq(15), payload(15)), *effects[3:]]
    assert restored.asks[-1].start == 16
    driver = Driver(replay=False, snapshots=True)
    driver.live(4)
    assert driver.fail_snapshots()[1:] == [Count("late_starts"), Apply(Seq(4), payload(4))]


def test_what_could_not_be_read_and_not_be_healed_is_forgotten(restored: Driver) -> None:
    restored.wait(2.0)
    restored.reply()
    restored.step(UnreadableBatch())
    restored.live(3)
    assert restored.fail_snapshots() == [Count("snapshot_failures"), Forget(0), Apply(Seq(3), payload(3))]


def test_what_is_unproven_is_not_claimed_for_long(restored: Driver) -> None:
    restored.wait(2.0)
    restored.reply()
    restored.step(UnreadableBatch())
    assert restored.wait(4.0) == []
    assert restored.wait(1.5) == [Forget(0)]
    assert restored.wait(10.0) == []
    assert restored.snapshot(9)[1] == Restore(Seq(9))


def test_a_snapshot_older_than_what_is_applied_is_none(restored: Driver) -> None:
    restored.wait(2.0)
    restored.reply(3, 4)
    restored.step(UnreadableBatch())
    assert restored.snapshot(3) == [Count("snapshot_failures")]
    restored.wait(1.0)
    assert restored.snapshot(4)[1] == Restore(Seq(4))


def test_answers_to_an_earlier_snapshot_change_nothing(restored: Driver) -> None:
    old = restored.snapshots[-1].ticket
    restored.step(Restarted("disconnected"))
    assert restored.step(Snapped(old, Seq(9), "boot"), SnapshotFailed(old)) == [Count("stale_replies")] * 2


def test_what_is_held_for_a_snapshot_is_bounded_and_replayed(restored: Driver) -> None:
    driver = Driver(snapshots=True)
    driver.live(0, 1, 2, 3, 4, 5)
    assert driver.counted("held_back_overflows") == 2
    driver.snapshot(1)
    assert driver.applied == [2, 3]
    driver.live(6)
    driver.reply(4, 5, 6)
    assert driver.applied == [2, 3, 4, 5, 6]


def test_frames_are_read_and_written() -> None:
    assert read_live([b"topic", (7).to_bytes(8, "big"), b"p"]) == Live(Seq(7), b"p")
    assert read_live([b"topic", b"short", b"p"]) is None
    assert read_live([b"topic"]) is None
    ticket = Ticket(3)
    assert read_reply([b"", b"t", (7).to_bytes(8, "big"), b"p"], ticket) == Replayed(ticket, Seq(7), b"p")
    assert read_reply([b"", b"", (-1).to_bytes(8, "big", signed=True), b""], ticket) == ReplayEnded(ticket)
    assert read_reply([b"x"], ticket) is None
    assert replay_request(Seq(258)) == [b"", b"\0\0\0\0\0\0\1\2"]
