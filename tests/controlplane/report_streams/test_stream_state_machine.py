"""One stream's state machine, transition by transition."""

from itertools import pairwise
from typing import Any

import pytest

from cachefleet_controlplane.report_streams import stream_state_machine
from cachefleet_controlplane.report_streams.report_stream import (
    Accept,
    Apply,
    ConnectionClosed,
    ConnectionOpened,
    Count,
    Drop,
    Effect,
    Received,
    Replace,
    ReportStream,
    RequestResync,
    StreamEvent,
    StreamInput,
    StreamState,
    Tick,
)
from cachefleet_controlplane.report_streams.stream_state_machine import step
from cachefleet_core.block_keys import Tier
from cachefleet_core.report_frames import Resync, State
from tests.controlplane.chains import chain, digest_of, removed, stored
from tests.controlplane.frames import delta, hello, sent, snapshot, state

KEYS = chain(1, 6)
HELD = [(key, Tier.DEVICE) for key in KEYS]
DIGEST = digest_of(HELD)


def run(
    stream: ReportStream, *events: StreamInput, now: float = 0.0, digest: int = 0
) -> tuple[ReportStream, list[Effect]]:
    """All events at one moment; the stream after them, and the effects of the last."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        stream, effects = step(stream, event, now, digest=digest)
    return stream, list(effects)


def on(frame: Any, connection: int = 1) -> Received:
    return Received(connection, received(frame))


def received(frame: Any) -> Any:
    return frame if isinstance(frame, State) else sent(frame)


def replaced(*frames: Any) -> Replace:
    """The effect of these parts."""
    return Replace(tuple(map(received, frames)))


def live(sequence: int = 10, now: float = 0.0) -> ReportStream:
    stream, _ = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(sequence, KEYS)), now=now)
    return run(stream, on(state(sequence, HELD)), now=now, digest=DIGEST)[0]


def ask(event: StreamEvent) -> list[Effect]:
    return [Count(event), RequestResync(Resync(reason=event.value))]


class TestOpening:
    def test_a_new_stream_awaits_its_snapshot(self) -> None:
        stream, effects = run(ReportStream(), ConnectionOpened(1, hello()))
        assert (stream.stream_state, stream.epoch) == (StreamState.AWAITING, "e1")
        assert effects == [Drop(), Count(StreamEvent.EPOCH)]

    def test_a_snapshot_makes_it_live(self) -> None:
        stream, effects = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(7, KEYS)))
        assert (stream.stream_state, stream.sequence) == (StreamState.LIVE, 7)
        assert effects == [replaced(snapshot(7, KEYS))]

    def test_deltas_before_the_snapshot_are_ignored(self) -> None:
        stream, effects = run(ReportStream(), ConnectionOpened(1, hello()), on(delta(8, stored(KEYS))))
        assert (stream.stream_state, effects) == (StreamState.AWAITING, [])

    @pytest.mark.requirement("A19")
    def test_a_new_epoch_drops_the_old_ones_blocks_at_once(self) -> None:
        stream, effects = run(live(), ConnectionOpened(2, hello(epoch="e2")))
        assert effects == [Drop(), Count(StreamEvent.EPOCH)]
        assert stream.stale(0.0)

    def test_a_new_epoch_may_begin_on_the_same_connection(self) -> None:
        _, effects = run(live(), ConnectionOpened(1, hello(epoch="e2")))
        assert effects == [Drop(), Count(StreamEvent.EPOCH)]

    def test_reconnecting_in_the_same_epoch_keeps_the_blocks_until_the_snapshot(self) -> None:
        stream, effects = run(live(), ConnectionClosed(1), ConnectionOpened(2, hello()), now=3.0)
        assert (stream.stream_state, effects, stream.stale(3.0)) == (StreamState.AWAITING, [], False)

    def test_an_older_connection_never_splices_into_a_newer_one(self) -> None:
        stream, _ = run(live(), ConnectionOpened(2, hello()), on(snapshot(20, KEYS), 2))
        for frame in (delta(21, stored(KEYS)), snapshot(30), state(99)):
            assert run(stream, on(frame, 1)) == (stream, [Count(StreamEvent.FOREIGN)])
        assert run(stream, ConnectionOpened(1, hello(epoch="old"))) == (stream, [Count(StreamEvent.FOREIGN)])
        assert run(stream, ConnectionClosed(1)) == (stream, [])


class TestSnapshots:
    def test_parts_are_applied_as_one_when_the_last_is_in(self) -> None:
        stream, effects = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(7, KEYS[:2], last=False)))
        assert (stream.stream_state, effects) == (StreamState.ASSEMBLING, [])
        others = snapshot(7, KEYS[2:4], part=1, last=False), snapshot(7, KEYS[4:], part=2)
        stream, effects = run(stream, *map(on, others))
        assert effects == [replaced(snapshot(7, KEYS[:2], last=False), *others)]
        assert stream.stream_state is StreamState.LIVE

    def test_deltas_between_parts_are_held_back_and_applied_after_it(self) -> None:
        behind = delta(8, removed(KEYS[:1])), delta(9, stored(KEYS[:1]))
        stream, effects = run(
            ReportStream(),
            ConnectionOpened(1, hello()),
            on(snapshot(7, KEYS[:2], last=False)),
            on(behind[0]),
            on(delta(7, stored(KEYS))),
            on(behind[1]),
            on(snapshot(7, KEYS[2:], part=1)),
        )
        assert effects[1:] == [Apply(received(frame)) for frame in behind]
        assert stream.sequence == 9

    def test_a_snapshot_while_live_replaces_everything(self) -> None:
        stream, effects = run(live(10), on(snapshot(12, KEYS[:1])))
        assert (effects, stream.sequence) == ([replaced(snapshot(12, KEYS[:1]))], 12)

    def test_a_first_part_starts_over(self) -> None:
        stream, _ = run(live(), on(snapshot(11, KEYS, last=False)))
        _, effects = run(stream, on(snapshot(12, KEYS[:1], last=True)))
        assert effects == [replaced(snapshot(12, KEYS[:1], last=True))]

    @pytest.mark.parametrize(
        "frame", [snapshot(11, KEYS, part=2), snapshot(12, KEYS, part=1), delta(13, stored(KEYS))], ids=str
    )
    def test_what_does_not_follow_breaks_it_off(self, frame: Any) -> None:
        stream, _ = run(live(), on(snapshot(11, KEYS, last=False)))
        stream, effects = run(stream, on(frame))
        assert stream.stream_state is StreamState.AWAITING
        assert isinstance(effects[-1], RequestResync)

    def test_a_part_without_its_first_is_refused(self) -> None:
        _, effects = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(7, KEYS, part=1)))
        assert effects == ask(StreamEvent.BROKEN_SNAPSHOT)

    def test_its_size_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = received(snapshot(11, KEYS, last=False))
        monkeypatch.setattr(stream_state_machine, "MAX_SNAPSHOT_BYTES", len(first.data) + 10)
        stream, _ = run(live(), on(snapshot(11, KEYS, last=False)))
        assert run(stream, on(snapshot(11, KEYS, part=1)))[1] == ask(StreamEvent.TOO_LARGE)
        assert run(stream, on(delta(12, stored(KEYS))))[1] == ask(StreamEvent.TOO_LARGE)

    def test_the_number_of_its_parts_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_state_machine, "MAX_PARTS", 2)
        stream, _ = run(live(), *(on(snapshot(11, part=number, last=False)) for number in range(2)))
        assert run(stream, on(snapshot(11, part=2)))[1] == ask(StreamEvent.TOO_LARGE)

    def test_the_deltas_behind_it_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stream_state_machine, "MAX_HELD_BACK", 2)
        stream, _ = run(live(), on(snapshot(11, KEYS, last=False)), on(delta(12)), on(delta(13)))
        assert run(stream, on(delta(14)))[1] == ask(StreamEvent.TOO_LARGE)


class TestDeltas:
    def test_the_next_number_is_applied_in_order(self) -> None:
        frame = delta(11, removed(KEYS[:1]), stored(KEYS[:1]))
        stream, effects = run(live(10), on(frame))
        assert (effects, stream.sequence) == ([Apply(received(frame))], 11)

    @pytest.mark.parametrize("sequence", [9, 10])
    def test_a_known_number_is_ignored(self, sequence: int) -> None:
        stream, effects = run(live(10), on(delta(sequence, stored(KEYS))))
        assert (effects, stream.sequence) == ([Count(StreamEvent.DUPLICATE)], 10)

    def test_a_gap_asks_for_a_snapshot_and_ignores_what_follows(self) -> None:
        stream, effects = run(live(10), on(delta(12, stored(KEYS))))
        assert (stream.stream_state, effects) == (StreamState.AWAITING, ask(StreamEvent.GAP))
        assert run(stream, on(delta(13, stored(KEYS)))) == (stream, [])


class TestStates:
    def test_an_equal_digest_is_accepted(self) -> None:
        report = state(10, HELD)
        stream, effects = run(live(10), on(report), digest=DIGEST)
        assert (stream.stream_state, effects) == (StreamState.LIVE, [Accept(report)])

    def test_another_digest_at_the_same_number_is_divergence(self) -> None:
        report = state(10, HELD[1:])
        stream, effects = run(live(10), on(report), digest=DIGEST)
        assert (stream.stream_state, effects) == (StreamState.AWAITING, [Accept(report), *ask(StreamEvent.DIVERGENCE)])

    def test_a_later_number_is_a_gap_even_where_digests_agree(self) -> None:
        _, effects = run(live(10), on(state(11, HELD)), digest=DIGEST)
        assert effects[1:] == ask(StreamEvent.GAP)

    def test_an_earlier_number_says_nothing_of_blocks(self) -> None:
        stream, effects = run(live(10), on(state(9)), digest=DIGEST)
        assert (stream.stream_state, effects[1:]) == (StreamState.LIVE, [Count(StreamEvent.DUPLICATE)])

    def test_a_resync_that_does_not_help_is_repeated_ever_more_slowly(self) -> None:
        stream, asked = live(10), []
        for tenths in range(3000):
            stream, effects = run(stream, on(state(10)), now=tenths / 10, digest=DIGEST)
            if (
                RequestResync(Resync(reason="divergence")) in effects
                or RequestResync(Resync(reason="overdue")) in effects
            ):
                asked.append(tenths / 10)
            if stream.stream_state is StreamState.AWAITING:
                stream, _ = run(stream, on(snapshot(10, KEYS)), now=tenths / 10)
        gaps = [round(b - a) for a, b in pairwise(asked)]
        assert gaps[:5] == [4, 8, 16, 30, 30]

    def test_one_that_agrees_ends_the_slowness(self) -> None:
        stream, _ = run(live(10), on(delta(99)), on(snapshot(99, KEYS)), now=1.0)
        stream, _ = run(stream, on(state(99, HELD)), now=1.1, digest=DIGEST)
        assert run(stream, on(delta(200)), now=1.2)[1] == ask(StreamEvent.GAP)

    def test_an_overdue_snapshot_is_asked_for_again(self) -> None:
        stream, _ = run(ReportStream(), ConnectionOpened(1, hello()))
        assert run(stream, on(state(5)), now=1.9)[1] == [Accept(state(5))]
        assert run(stream, on(state(5)), now=2.1)[1][1:] == ask(StreamEvent.OVERDUE)

    def test_parts_that_keep_coming_are_not_overdue(self) -> None:
        stream, _ = run(ReportStream(), ConnectionOpened(1, hello()))
        for second in range(9):
            stream, _ = run(stream, on(snapshot(7, KEYS, part=second, last=False)), now=second)
            stream, effects = run(stream, on(state(7)), now=second + 0.9)
            assert effects == [Accept(state(7))]


class TestSilence:
    def test_is_stale_before_any_report_and_five_seconds_after_the_last(self) -> None:
        unreported, _ = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(7, KEYS)))
        assert unreported.stale(0.0)
        assert [live().stale(now) for now in (0.0, 5.0, 5.1)] == [False, False, True]

    def test_its_blocks_are_dropped_after_fifteen(self) -> None:
        assert run(live(), Tick(), now=15.0)[1] == []
        stream, effects = run(live(), Tick(), now=15.1)
        assert (stream.stream_state, effects) == (StreamState.FORGOTTEN, [Drop(), Count(StreamEvent.EXPIRED)])
        assert run(stream, Tick(), now=99.0) == (stream, [])

    def test_also_when_its_connection_is_gone_and_not_before(self) -> None:
        stream, effects = run(live(), ConnectionClosed(1))
        assert (stream.stream_state, effects, stream.stale(1.0)) == (StreamState.ADRIFT, [], False)
        assert run(stream, Tick(), now=14.0)[1] == []
        assert Drop() in run(stream, Tick(), now=16.0)[1]

    def test_also_when_it_never_reported(self) -> None:
        stream, _ = run(ReportStream(), ConnectionOpened(1, hello()), on(snapshot(7, KEYS)))
        assert Drop() in run(stream, Tick(), now=15.1)[1]

    def test_a_forgotten_one_that_speaks_again_is_asked_for_everything(self) -> None:
        stream, _ = run(live(), Tick(), now=16.0)
        assert run(stream, on(delta(11, stored(KEYS))), now=17.0) == (stream, [])
        revived, effects = run(stream, on(state(11)), now=17.0)
        assert (revived.stream_state, effects[1:]) == (StreamState.AWAITING, ask(StreamEvent.GAP))

    def test_a_forgotten_one_that_reconnects_starts_anew(self) -> None:
        stream, _ = run(live(), ConnectionClosed(1), Tick(), now=16.0)
        stream, _ = run(stream, ConnectionOpened(2, hello()), on(snapshot(20, KEYS), 2), now=17.0)
        assert (stream.stream_state, stream.stale(17.0)) == (StreamState.LIVE, True)


class TestOutOfStep:
    """A stream whose worker speaks all the time, and whose snapshot does not come."""

    def strayed(self, *frames: Any) -> ReportStream:
        return run(live(10), *map(on, frames), digest=DIGEST)[0]

    @pytest.mark.parametrize(
        "frame", [delta(12), state(10), snapshot(11, KEYS, last=False)], ids=["gap", "divergence", "assembling"]
    )
    def test_its_claims_are_withdrawn_after_five_seconds_and_dropped_after_fifteen(self, frame: Any) -> None:
        stream = self.strayed(frame)
        told: list[Effect] = []
        for second in range(1, 40):
            stream, _ = run(stream, on(state(12)), now=second)
            assert stream.stale(second) == (second > 5)
            stream, effects = run(stream, Tick(), now=second)
            told += effects
            assert (Drop() in told) == (second > 15)
        assert told == [Drop(), Count(StreamEvent.EXPIRED)]

    def test_a_snapshot_under_way_outlasts_the_loss_and_ends_it(self) -> None:
        stream = self.strayed(snapshot(11, KEYS[:2], last=False))
        stream, _ = run(stream, on(snapshot(11, KEYS[2:4], part=1, last=False)), on(state(11)), now=15.0)
        stream, effects = run(stream, Tick(), now=16.0)
        assert Drop() in effects
        stream, effects = run(stream, on(snapshot(11, KEYS[4:], part=2)), now=16.0)
        assert [type(effect) for effect in effects] == [Replace]
        assert not stream.stale(17.0)
        stream, effects = run(stream, Tick(), now=17.0)
        assert (stream.stream_state, effects) == (StreamState.LIVE, [])

    def test_asking_again_gives_no_further_time(self) -> None:
        stream = self.strayed(delta(12))
        stream, _ = run(stream, on(state(12)), on(snapshot(12, KEYS, part=3)), now=4.0)
        stream, _ = run(stream, on(state(12)), now=5.1)
        assert stream.stale(5.1)

    def test_a_new_connection_of_the_same_epoch_gives_its_few_seconds(self) -> None:
        stream, _ = run(live(), ConnectionClosed(1), ConnectionOpened(2, hello()), now=3.0)
        stream, _ = run(stream, on(state(10), 2), now=8.0)
        assert not stream.stale(8.0)
        stream, _ = run(stream, ConnectionOpened(3, hello()), on(state(10), 3), now=8.1)
        assert stream.stale(8.1)

    def test_a_new_epoch_has_nothing_to_drop(self) -> None:
        stream, _ = run(ReportStream(), ConnectionOpened(1, hello()), on(state(10)), now=0.0)
        assert run(stream, on(state(10)), Tick(), now=16.0)[1] == []
