"""A follower's state and its moves from one phase to the next; follower.py says which input leads to which. Pure."""

from __future__ import annotations

from enum import Enum, auto

from cachefleet_worker.agent.events.epoch import Epoch, Limits
from cachefleet_worker.agent.events.recovery import RecoveryState
from cachefleet_worker.agent.wire.messages import (
    Apply,
    Count,
    Effect,
    Forget,
    NewEpoch,
    RequestReplay,
    RequestSnapshot,
    Seq,
    Ticket,
)


class Phase(Enum):
    FOLLOWING = auto()  # nothing known to be missing, nothing asked
    FILLING = auto()  # something is missing and asked for
    PROBING = auto()  # nothing known to be missing, the tail is asked for
    WAITING = auto()  # something is missing, the next request waits for its time
    RESTORING = auto()  # a snapshot is asked for
    PAUSING = auto()  # a snapshot is wanted, its request waits for its time


class State:
    """What ``Follower`` describes; every move gives the effects that go with it."""

    def __init__(self, *, replay: bool, snapshots: bool, boot: str, limits: Limits) -> None:
        self.limits = limits
        self.replay = replay
        self.snapshots = snapshots
        self.boot = boot
        self.tickets = 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Know nothing of any process."""
        self.epoch = Epoch(self.limits)
        self.recovery = RecoveryState(self.limits)
        self.now = self.probe_at = self.retry_at = now
        self.phase = Phase.FOLLOWING
        self.ticket: Ticket | None = None
        self.first_reply = False
        self.attempts = self.asked = 0

    @property
    def unrestored(self) -> bool:
        """Whether everything waits for a snapshot."""
        return self.phase in (Phase.RESTORING, Phase.PAUSING)

    def is_other(self, boot: str) -> bool:
        """Whether this is another process than the one followed; the first one told is believed."""
        self.boot = self.boot or boot
        return boot != self.boot

    def restart(self, reason: str) -> list[Effect]:
        self.boot = ""
        self.begin(self.now)
        return [NewEpoch(reason), *self.open()]

    def open(self) -> list[Effect]:
        """The first request of an epoch."""
        return self.ask_snapshot() if self.snapshots else self.ask(Phase.FILLING)

    # Requests

    def ask(self, phase: Phase) -> list[Effect]:
        """Everything from the next batch on."""
        if not self.replay:
            return []
        self.phase, self.ticket = phase, self._new_ticket()
        self.asked, self.first_reply = self.epoch.next, True
        return [Count("replays"), RequestReplay(self.ticket, Seq(self.asked))]

    def ask_snapshot(self) -> list[Effect]:
        self.phase, self.ticket = Phase.RESTORING, self._new_ticket()
        return [RequestSnapshot(self.ticket)]

    def wait(self, phase: Phase, seconds: float) -> None:
        self.phase, self.ticket = phase, None
        self.retry_at = self.now + seconds

    def progressed(self) -> bool:
        """Whether anything came of the last request for a replay."""
        return self.epoch.next > self.asked

    # Moves

    def settle(self) -> list[Effect]:
        """Nothing is known to be missing."""
        self.phase, self.ticket, self.attempts = Phase.FOLLOWING, None, 0
        quiet = self.limits.probe_seconds if self.epoch.caught_up else self.limits.first_probe_seconds
        self.epoch.caught_up = True
        self.probe_at = self.now + quiet
        return []

    def fill(self) -> list[Effect]:
        """Something is missing."""
        return self.ask(Phase.FILLING) if self.replay else self.give_up()

    def give_up(self) -> list[Effect]:
        """What is missing will not come: go on from a snapshot, or from what is held."""
        effects = self.lose(min(self.epoch.held))
        if self.unrestored:
            return effects
        effects += self.drain()
        self.settle()
        return effects + (self.fill() if self.epoch.held else [])

    def lose(self, seq: int) -> list[Effect]:
        """What is missing before ``seq`` is lost."""
        if self.snapshots and self.recovery.may_ask_soon(self.now):
            return self.restore()
        return self._skip_to(seq)

    def restore(self) -> list[Effect]:
        """Replace what is held, of which nothing can be proven, as soon as a snapshot may be asked for."""
        self.attempts = 0
        if self.epoch.started:
            self.recovery.begin(self.now)
        wait = self.recovery.wait(self.now)
        if wait:
            self.wait(Phase.PAUSING, wait)
            return []
        return self.ask_snapshot()

    def go_on_without(self) -> list[Effect]:
        """No snapshot is to be had: as with stock vLLM."""
        epoch = self.epoch
        self.recovery.failed(self.now)
        self.settle()
        if not epoch.started and self.replay:
            return self.fill()
        forget: list[Effect] = [Forget(0)] if epoch.started else []
        effects = self._skip_to(min(epoch.held)) if epoch.held else []
        effects = [*(effects or forget), *self.drain()]
        return effects + (self.fill() if epoch.held else [])

    def drain(self) -> list[Effect]:
        """Apply what is next as far as it is there."""
        return [Apply(seq, payload) for seq, payload in self.epoch.drain()]

    def _skip_to(self, seq: int) -> list[Effect]:
        """Go on right after the last batch missing before ``seq``."""
        lost = self.epoch.skip_to(seq)
        if lost == 0:
            return []
        self.recovery.whole = False
        return [Forget(lost)] if self.epoch.started else [Count("late_starts")]

    def _new_ticket(self) -> Ticket:
        self.tickets += 1
        return Ticket(self.tickets)
