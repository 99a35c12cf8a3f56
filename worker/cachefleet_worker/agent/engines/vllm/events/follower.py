"""State machine that orders one engine rank's event stream: inputs in, effects out, no sockets and no clock.

vLLM publishes numbered batches on one socket and answers replay requests ("from number N") on another, out of a
buffer of the last few thousand. An engine with the worker plugin also gives marks, and snapshots of everything it
holds, exact at a number. Failures and what is done:

- *Gap*: a live number above the next expected one. Live batches are held back, the missing range is requested, and
  everything is applied in order. Applying late would let an old store resurrect a removed block.
- *Lag*: the replay begins above the requested number, and the live socket has given nothing beyond it: what is missing
  may still wait in the agent's own socket. The request is made again, as often as that brings something, and then for
  as many attempts as any. A live batch that something else has overtaken is passed over.
- *Loss*: the replay begins above the requested number, or repeatedly ends without it. Removals may have been among the
  lost batches. With a plugin a snapshot is taken; else everything held is withdrawn, and the batches after the loss
  are a sound subset of the truth.
- *Dropped replies*: a replay with a hole further in (its socket drops what is not read in time). The rest is requested
  again: the first reply to a request is never dropped, so each round gets further.
- *Silent tail*: lost last batches show only when another comes: a heartbeat where there is a plugin. When quiet, "from
  the next one on" is requested.
- *Restart*: numbers of one process only rise. A number that does not, and is no exact duplicate, is from a new
  process; so is whatever comes after a disconnection or a new process start time (``Restarted``), and a mark or a
  snapshot with another boot id. That is a new epoch: everything held is withdrawn.
- *Late start*: a new epoch whose replay does not reach back to 0. Nothing is held yet, so nothing is withdrawn. With a
  plugin an epoch starts with a snapshot.
- *Divergence*: a mark whose totals differ from ours, or a batch that cannot be read. A snapshot is taken.

While a snapshot is awaited all live batches are held back; then those it covers are skipped, and the rest applied.
Blocks held before are still reported for a short time (recovery.py). Without a snapshot after several attempts
everything is as with stock vLLM, and it is tried again later.

Bounded: batches held back (more are dropped and requested again), fingerprints kept, attempts at one gap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower_state import Phase, State
from cachefleet_worker.agent.engines.vllm.events.messages import (
    Count,
    Effect,
    Forget,
    Input,
    Live,
    Marked,
    PeekMark,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    Restarted,
    Restore,
    Seq,
    Snapped,
    SnapshotFailed,
    Tick,
    UnreadableBatch,
)


class Follower:
    """One rank's stream. ``step`` takes an input and the time in seconds and returns the effects, in order.

    ``replay`` is False where the engine has no replay socket; then every gap is a loss. ``snapshots`` is True where it
    has the plugin. ``boot`` is its boot id where known, "" to accept the first one reported.
    """

    def __init__(
        self, *, replay: bool = True, snapshots: bool = False, boot: str = "", limits: Limits | None = None
    ) -> None:
        self._state = State(replay=replay, snapshots=snapshots, boot=boot, limits=limits or Limits())

    @property
    def phase(self) -> Phase:
        """Present phase of the state machine."""
        return self._state.phase

    @property
    def next_seq(self) -> Seq:
        """Number of the next batch to apply."""
        return Seq(self._state.epoch.next)

    @property
    def held_back(self) -> int:
        """Number of live batches waiting for their turn."""
        return len(self._state.epoch.held)

    @property
    def settled(self) -> bool:
        """Whether all batches known to be published have been applied."""
        return self.phase in (Phase.FOLLOWING, Phase.PROBING) and not self.held_back

    @property
    def whole(self) -> bool:
        """Whether everything that the engine holds is known; False for a stock engine."""
        return self.settled and self._state.recovery.whole

    def start(self, now: float) -> list[Effect]:
        """The first request, once the live socket is subscribed."""
        self._state.begin(now)
        return self._state.open()

    def step(self, event: Input, now: float) -> list[Effect]:
        """Effects of one input; answers to an earlier request are only counted."""
        self._state.now = now
        if isinstance(event, self._ANSWERS) and event.ticket != self._state.ticket:
            return [Count("stale_replies")]
        handler = self._TABLE.get((self.phase, type(event)))
        return [] if handler is None else handler(self, event)

    # Live batches

    def _on_live(self, event: Live) -> list[Effect]:
        state = self._state
        refused = self._take(event)
        if refused is not None:
            return refused
        state.probe_at = state.now + state.limits.probe_seconds
        effects = state.drain()
        if state.epoch.held and state.phase is Phase.PROBING:
            state.phase = Phase.FILLING  # the outstanding request began at or before the gap
        elif state.epoch.held and state.phase is Phase.FOLLOWING:
            effects += [Count("gaps"), *state.fill()]
        return effects

    def _on_live_unrestored(self, event: Live) -> list[Effect]:
        return self._take(event) or []

    def _take(self, event: Live) -> list[Effect] | None:
        """Hold a batch until its turn and return None; the effects where it is not held."""
        epoch = self._state.epoch
        if epoch.is_duplicate(event.seq, event.payload):
            return [Count("duplicates")]
        if epoch.is_late(event.seq, event.payload):
            epoch.pass_over(event.seq, event.payload)
            return [Count("late_batches"), PeekMark(event.payload)]
        if event.seq <= epoch.highest or event.seq < epoch.next:
            return [*self._state.restart("sequence"), *self.step(event, self._state.now)]
        epoch.highest = event.seq
        return None if epoch.hold(event.seq, event.payload) else [Count("held_back_overflows")]

    # Replay

    def _on_replayed(self, event: Replayed) -> list[Effect]:
        state, epoch = self._state, self._state.epoch
        first, state.first_reply = state.first_reply, False
        if epoch.contradicts(event.seq, event.payload):
            return state.restart("sequence")
        if event.seq < epoch.next:
            return []
        hole = first and event.seq > epoch.next
        if hole and epoch.behind and state.postpone():
            return [Count("late_replays")]
        effects = state.lose(event.seq) if hole else []
        epoch.hold(event.seq, event.payload)
        return effects + state.drain()

    def _on_ended(self, _event: ReplayEnded) -> list[Effect]:
        if not self._state.epoch.held:
            return self._state.settle()
        return self._ask_on() if self._state.progressed() else self._retry_or(self._state.give_up)

    def _on_failed(self, _event: ReplayFailed) -> list[Effect]:
        state = self._state
        effects: list[Effect] = [Count("replay_failures")]
        if state.progressed():
            return effects + self._ask_on()
        if state.epoch.held:
            return effects + self._retry_or(state.give_up)
        return effects + (state.settle() if state.phase is Phase.PROBING else self._retry_or(state.settle))

    def _ask_on(self) -> list[Effect]:
        self._state.attempts = 0
        return self._state.ask(self.phase)

    def _retry_or(self, give_up: Callable[[], list[Effect]]) -> list[Effect]:
        state = self._state
        state.attempts += 1
        if state.attempts >= state.limits.attempts:
            return give_up()
        state.wait(Phase.WAITING, state.limits.retry_seconds)
        return []

    # Snapshots

    def _on_snapped(self, event: Snapped) -> list[Effect]:
        state = self._state
        if state.is_other(event.boot):
            return state.restart("boot")
        if event.seq + 1 < state.epoch.next:  # older than the batches applied when it was requested
            return self._on_snapshot_failed(SnapshotFailed(event.ticket))
        state.epoch.restore(event.seq)
        state.recovery.restored(state.now)
        state.settle()
        effects: list[Effect] = [Count("snapshots"), Restore(event.seq), *state.drain()]
        return effects + ([Count("gaps"), *state.fill()] if state.epoch.held else [])

    def _on_snapshot_failed(self, _event: SnapshotFailed) -> list[Effect]:
        state = self._state
        state.attempts += 1
        if state.attempts < state.limits.attempts:
            state.wait(Phase.PAUSING, state.limits.retry_seconds)
            return [Count("snapshot_failures")]
        return [Count("snapshot_failures"), *state.go_on_without()]

    def _on_unread(self, _event: UnreadableBatch) -> list[Effect]:
        state = self._state
        if state.snapshots and state.recovery.may_ask_soon(state.now):
            return state.restore()
        state.recovery.whole = False
        return [Forget(0)]

    def _on_marked(self, event: Marked) -> list[Effect]:
        state, recovery = self._state, self._state.recovery
        if state.is_other(event.boot):
            return state.restart("boot")
        if event.agrees:
            recovery.proven()
        if event.agrees is not False or not state.snapshots:
            return []
        effects: list[Effect] = [Count("divergences")] if recovery.whole else []
        recovery.whole = False
        free = state.phase in (Phase.FOLLOWING, Phase.PROBING)
        return effects + (state.restore() if free and recovery.wants(state.now) else [])

    # Time and restarts

    def _on_tick_waiting(self, _event: Tick) -> list[Effect]:
        return self._state.ask(Phase.FILLING) if self._state.now >= self._state.retry_at else []

    def _on_tick_unrestored(self, _event: Tick) -> list[Effect]:
        state = self._state
        effects: list[Effect] = [Forget(0)] if state.recovery.is_over(state.now) else []
        if state.phase is Phase.PAUSING and state.now >= state.retry_at:
            effects += state.ask_snapshot()
        return effects

    def _on_tick_following(self, _event: Tick) -> list[Effect]:
        state = self._state
        if state.snapshots and state.recovery.wants(state.now):
            return state.restore()
        if not state.replay or state.now < state.probe_at:
            return []
        return [Count("probes"), *state.ask(Phase.PROBING)]

    def _on_restarted(self, event: Restarted) -> list[Effect]:
        return self._state.restart(event.reason)

    _ANSWERS: ClassVar = (Replayed, ReplayEnded, ReplayFailed, Snapped, SnapshotFailed)
    _TABLE: ClassVar[dict[tuple[Phase, type[Input]], Callable[[Follower, Any], list[Effect]]]] = {
        (Phase.FOLLOWING, Live): _on_live,
        (Phase.FOLLOWING, Marked): _on_marked,
        (Phase.FOLLOWING, UnreadableBatch): _on_unread,
        (Phase.FOLLOWING, Tick): _on_tick_following,
        (Phase.FOLLOWING, Restarted): _on_restarted,
        (Phase.FILLING, Live): _on_live,
        (Phase.FILLING, Replayed): _on_replayed,
        (Phase.FILLING, ReplayEnded): _on_ended,
        (Phase.FILLING, ReplayFailed): _on_failed,
        (Phase.FILLING, Marked): _on_marked,
        (Phase.FILLING, UnreadableBatch): _on_unread,
        (Phase.FILLING, Restarted): _on_restarted,
        (Phase.PROBING, Live): _on_live,
        (Phase.PROBING, Replayed): _on_replayed,
        (Phase.PROBING, ReplayEnded): _on_ended,
        (Phase.PROBING, ReplayFailed): _on_failed,
        (Phase.PROBING, Marked): _on_marked,
        (Phase.PROBING, UnreadableBatch): _on_unread,
        (Phase.PROBING, Restarted): _on_restarted,
        (Phase.WAITING, Live): _on_live,
        (Phase.WAITING, Marked): _on_marked,
        (Phase.WAITING, UnreadableBatch): _on_unread,
        (Phase.WAITING, Tick): _on_tick_waiting,
        (Phase.WAITING, Restarted): _on_restarted,
        (Phase.RESTORING, Live): _on_live_unrestored,
        (Phase.RESTORING, Snapped): _on_snapped,
        (Phase.RESTORING, SnapshotFailed): _on_snapshot_failed,
        (Phase.RESTORING, Marked): _on_marked,
        (Phase.RESTORING, Tick): _on_tick_unrestored,
        (Phase.RESTORING, Restarted): _on_restarted,
        (Phase.PAUSING, Live): _on_live_unrestored,
        (Phase.PAUSING, Marked): _on_marked,
        (Phase.PAUSING, Tick): _on_tick_unrestored,
        (Phase.PAUSING, Restarted): _on_restarted,
    }
