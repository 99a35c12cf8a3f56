"""The follower's state and its transitions; follower.py maps inputs to them. Pure."""

from __future__ import annotations

from enum import Enum, auto

from cachefleet_worker.agent.engines.vllm.events.epoch import Epoch, Limits
from cachefleet_worker.agent.engines.vllm.events.messages import (
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
from cachefleet_worker.agent.engines.vllm.events.recovery import RecoveryState


class Phase(Enum):
    """What a follower waits for."""

    FOLLOWING = auto()  # nothing known to be missing, no request open
    FILLING = auto()  # batches are missing and requested
    PROBING = auto()  # nothing known to be missing, the tail is requested
    WAITING = auto()  # batches are missing, the next request is delayed
    RESTORING = auto()  # a snapshot is requested
    PAUSING = auto()  # a snapshot is needed, its request is delayed


class State:
    """The state behind ``Follower``; every transition returns its effects."""

    def __init__(self, *, replay: bool, snapshots: bool, boot: str, limits: Limits) -> None:
        self.limits = limits
        self.replay = replay
        self.snapshots = snapshots
        self.boot = boot
        self.tickets = 0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """Reset to a stream of which nothing is known."""
        self.epoch = Epoch(self.limits)
        self.recovery = RecoveryState(self.limits)
        self.now = self.probe_at = self.retry_at = now
        self.phase = Phase.FOLLOWING
        self.ticket: Ticket | None = None
        self.first_reply = False
        self.attempts = self.asked = self.postponed = 0

    @property
    def unrestored(self) -> bool:
        """Whether everything waits for a snapshot."""
        return self.phase in (Phase.RESTORING, Phase.PAUSING)

    def is_other(self, boot: str) -> bool:
        """Whether ``boot`` names another process; the first boot id is taken as this one's."""
        self.boot = self.boot or boot
        return boot != self.boot

    def restart(self, reason: str) -> list[Effect]:
        """Begin a new epoch, with its first request."""
        self.boot = ""
        self.begin(self.now)
        return [NewEpoch(reason), *self.open()]

    def open(self) -> list[Effect]:
        """The first request of an epoch."""
        return self.ask_snapshot() if self.snapshots else self.ask(Phase.FILLING)

    # Requests

    def ask(self, phase: Phase) -> list[Effect]:
        """Request a replay of everything from the next batch on; nothing without a replay socket."""
        if not self.replay:
            return []
        self.phase, self.ticket = phase, self._new_ticket()
        self.asked, self.first_reply = self.epoch.next, True
        return [Count("replays"), RequestReplay(self.ticket, Seq(self.asked))]

    def ask_snapshot(self) -> list[Effect]:
        """Request a snapshot."""
        self.phase, self.ticket = Phase.RESTORING, self._new_ticket()
        return [RequestSnapshot(self.ticket)]

    def wait(self, phase: Phase, seconds: float) -> None:
        """Wait ``seconds`` until the next request."""
        self.phase, self.ticket = phase, None
        self.retry_at = self.now + seconds

    def postpone(self) -> bool:
        """Wait for batches that may be on their way, and then ask again; False where that was tried enough."""
        if self.epoch.next > self.postponed:
            self.attempts, self.postponed = 0, self.epoch.next
        self.attempts += 1
        if self.attempts < self.limits.attempts:
            self.wait(Phase.WAITING, self.limits.retry_seconds)
        return self.attempts < self.limits.attempts

    def progressed(self) -> bool:
        """Whether the last replay request brought batches that were applied."""
        return self.epoch.next > self.asked

    # Transitions

    def settle(self) -> list[Effect]:
        """Nothing is known to be missing: follow, and probe for a lost tail after a quiet time."""
        self.phase, self.ticket, self.attempts = Phase.FOLLOWING, None, 0
        quiet = self.limits.probe_seconds if self.epoch.caught_up else self.limits.first_probe_seconds
        self.epoch.caught_up = True
        self.probe_at = self.now + quiet
        return []

    def fill(self) -> list[Effect]:
        """Batches are missing: request them, or give them up without a replay socket."""
        return self.ask(Phase.FILLING) if self.replay else self.give_up()

    def give_up(self) -> list[Effect]:
        """Missing batches cannot be replayed: take a snapshot, or skip them."""
        effects = self.lose(min(self.epoch.held))
        if self.unrestored:
            return effects
        effects += self.drain()
        self.settle()
        return effects + (self.fill() if self.epoch.held else [])

    def lose(self, seq: int) -> list[Effect]:
        """The batches missing before ``seq`` are lost: take a snapshot, or skip them."""
        if self.snapshots and self.recovery.may_ask_soon(self.now):
            return self.restore()
        return self._skip_to(seq)

    def restore(self) -> list[Effect]:
        """Replace everything held, now unproven, by a snapshot as soon as one may be requested."""
        self.attempts = 0
        if self.epoch.started:
            self.recovery.begin(self.now)
        wait = self.recovery.wait(self.now)
        if wait:
            self.wait(Phase.PAUSING, wait)
            return []
        return self.ask_snapshot()

    def go_on_without(self) -> list[Effect]:
        """No snapshot is available: withdraw what is held and follow events as for stock vLLM."""
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
        """Apply the next consecutive batches."""
        return [Apply(seq, payload) for seq, payload in self.epoch.drain()]

    def _skip_to(self, seq: int) -> list[Effect]:
        """Go on right after the last missing batch before ``seq``."""
        lost = self.epoch.skip_to(seq)
        if lost == 0:
            return []
        self.recovery.whole = False
        return [Forget(lost)] if self.epoch.started else [Count("late_starts")]

    def _new_ticket(self) -> Ticket:
        self.tickets += 1
        return Ticket(self.tickets)
