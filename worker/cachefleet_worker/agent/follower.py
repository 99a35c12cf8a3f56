"""The order of one engine rank's event stream, as a state machine: inputs in, effects out, no sockets and no clock.

vLLM publishes numbered batches on one socket and answers replay requests ("from number N") on another, out of a
buffer of the last few thousand. What can go wrong, and what is done:

- *Gap*: a live number above the next expected one. Live batches are held back, the missing range is asked for, and
  everything is applied in order. Applying late would let an old store resurrect a removed block.
- *Loss*: the replay begins above what was asked, or ends without it again and again. Removals may have been among the
  lost batches, so what was held is forgotten; the batches after the loss are a sound subset of the truth.
- *Dropped replies*: a replay with a hole further in (its socket drops what is not read in time). The rest is asked
  again: the first reply to a request is never dropped, so each round gets further.
- *Silent tail*: nothing tells that the last batches were lost until another comes. When quiet, "from the next one on"
  is asked.
- *Restart*: numbers of one process only rise. A number that does not, and is no exact duplicate, is from a new
  process; so is whatever comes after a disconnection or a new process start time (``Restarted``). That is a new epoch:
  forget all, replay from 0.
- *Late start*: a new epoch whose replay does not reach back to 0. Nothing is held yet, so nothing is forgotten.

Bounded: batches held back (more are dropped and asked for again), fingerprints kept, attempts at one gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar

from .signals import (
    Apply,
    Ask,
    Count,
    Effect,
    Forget,
    Input,
    Live,
    NewEpoch,
    Replayed,
    ReplayEnded,
    ReplayFailed,
    Restarted,
    Seq,
    Tick,
    Ticket,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one follower."""

    held_batches: int = 20_000
    held_bytes: int = 64 * 1024 * 1024
    fingerprints: int = 16_384
    attempts: int = 3
    retry_seconds: float = 1.0
    probe_seconds: float = 5.0
    first_probe_seconds: float = 0.5
    """The first replay may be answered before the live socket is connected: what came between is asked for soon."""


class Phase(Enum):
    FOLLOWING = auto()  # nothing known to be missing, nothing asked
    FILLING = auto()  # something is missing and asked for
    PROBING = auto()  # nothing known to be missing, the tail is asked for
    WAITING = auto()  # something is missing, the next request waits for its time


@dataclass(slots=True)
class _Epoch:
    """What is known of one process's stream."""

    next: int = 0
    highest: int = -1
    started: bool = False
    caught_up: bool = False
    held: dict[int, bytes] = field(default_factory=dict)
    held_bytes: int = 0
    seen: dict[int, int] = field(default_factory=dict)


class Follower:
    """One rank's stream. ``step`` takes an input and the time in seconds and says what is to be done, in order.

    ``replay`` is False where the engine has no replay socket; then every gap is a loss.
    """

    def __init__(self, *, replay: bool = True, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._replay = replay
        self._tickets = 0
        self.phase = Phase.FOLLOWING
        self._ticket: Ticket | None = None
        self._first_reply = False
        self._begin(0.0)

    @property
    def next_seq(self) -> Seq:
        return Seq(self._epoch.next)

    @property
    def held_back(self) -> int:
        return len(self._epoch.held)

    @property
    def settled(self) -> bool:
        """Whether everything published so far, as far as it is known, has been applied."""
        return self.phase in (Phase.FOLLOWING, Phase.PROBING) and not self._epoch.held

    def start(self, now: float) -> list[Effect]:
        """The first request, once the live socket is subscribed."""
        self._begin(now)
        return self._ask(Phase.FILLING)

    def step(self, event: Input, now: float) -> list[Effect]:
        self._now = now
        if isinstance(event, Replayed | ReplayEnded | ReplayFailed) and event.ticket != self._ticket:
            return [Count("stale_replies")]
        handler = self._TABLE.get((self.phase, type(event)))
        return [] if handler is None else handler(self, event)

    # Live batches

    def _on_live(self, event: Live) -> list[Effect]:
        epoch = self._epoch
        if self._is_duplicate(event.seq, event.payload):
            return [Count("duplicates")]
        if event.seq <= epoch.highest or event.seq < epoch.next:
            return [*self._restart("sequence"), *self._on_live(event)]
        epoch.highest = event.seq
        self._probe_at = self._now + self._limits.probe_seconds
        if not self._hold(event.seq, event.payload):
            return [Count("held_back_overflows")]
        effects = self._drain()
        if epoch.held and self.phase is Phase.PROBING:
            self.phase = Phase.FILLING  # the outstanding request began at or before the gap
        elif epoch.held and self.phase is Phase.FOLLOWING:
            effects += [Count("gaps"), *self._fill()]
        return effects

    # Replay

    def _on_replayed(self, event: Replayed) -> list[Effect]:
        epoch = self._epoch
        first, self._first_reply = self._first_reply, False
        if event.seq < epoch.next:
            fingerprint = epoch.seen.get(event.seq)
            same = fingerprint is None or fingerprint == hash(event.payload)
            return [] if same else self._restart("sequence")
        if event.seq in epoch.held and epoch.held[event.seq] != event.payload:
            return self._restart("sequence")
        effects: list[Effect] = []
        if first and event.seq > epoch.next:
            effects = self._skip_to(event.seq)
        if self._hold(event.seq, event.payload):
            effects += self._drain()
        return effects

    def _on_ended(self, _event: ReplayEnded) -> list[Effect]:
        if not self._epoch.held:
            return self._settle()
        return self._ask_on() if self._progressed() else self._retry_or(self._give_up)

    def _on_failed(self, _event: ReplayFailed) -> list[Effect]:
        effects: list[Effect] = [Count("replay_failures")]
        if self._progressed():
            return effects + self._ask_on()
        if self._epoch.held:
            return effects + self._retry_or(self._give_up)
        return effects + (self._settle() if self.phase is Phase.PROBING else self._retry_or(self._settle))

    def _ask_on(self) -> list[Effect]:
        self._attempts = 0
        return self._ask(self.phase)

    def _retry_or(self, give_up: Callable[[], list[Effect]]) -> list[Effect]:
        self._attempts += 1
        if self._attempts >= self._limits.attempts:
            return give_up()
        self.phase, self._ticket = Phase.WAITING, None
        self._retry_at = self._now + self._limits.retry_seconds
        return []

    def _settle(self) -> list[Effect]:
        self.phase, self._ticket, self._attempts = Phase.FOLLOWING, None, 0
        quiet = self._limits.probe_seconds if self._epoch.caught_up else self._limits.first_probe_seconds
        self._epoch.caught_up = True
        self._probe_at = self._now + quiet
        return []

    def _give_up(self) -> list[Effect]:
        """What is missing will not come: go on from what is held."""
        effects = self._skip_to(min(self._epoch.held)) + self._drain()
        self._settle()
        return effects + (self._fill() if self._epoch.held else [])

    # Time and restarts

    def _on_tick_waiting(self, _event: Tick) -> list[Effect]:
        return self._ask(Phase.FILLING) if self._now >= self._retry_at else []

    def _on_tick_following(self, _event: Tick) -> list[Effect]:
        if not self._replay or self._now < self._probe_at:
            return []
        return [Count("probes"), *self._ask(Phase.PROBING)]

    def _on_restarted(self, event: Restarted) -> list[Effect]:
        return self._restart(event.reason)

    def _restart(self, reason: str) -> list[Effect]:
        self._begin(self._now)
        return [NewEpoch(reason), *self._ask(Phase.FILLING)]

    def _begin(self, now: float) -> None:
        self._epoch = _Epoch()
        self._now = self._probe_at = now
        self.phase, self._ticket, self._first_reply = Phase.FOLLOWING, None, False
        self._attempts = self._asked = 0
        self._retry_at = now

    # Parts

    def _fill(self) -> list[Effect]:
        return self._ask(Phase.FILLING) if self._replay else self._give_up()

    def _ask(self, phase: Phase) -> list[Effect]:
        if not self._replay:
            return []
        self._tickets += 1
        ticket = Ticket(self._tickets)
        self.phase, self._ticket = phase, ticket
        self._asked, self._first_reply = self._epoch.next, True
        return [Count("replays"), Ask(ticket, Seq(self._asked))]

    def _progressed(self) -> bool:
        return self._epoch.next > self._asked

    def _is_duplicate(self, seq: int, payload: bytes) -> bool:
        epoch = self._epoch
        return epoch.held.get(seq) == payload or epoch.seen.get(seq) == hash(payload)

    def _hold(self, seq: int, payload: bytes) -> bool:
        """Keep a batch until it is its turn; False where there is no room (it can be asked for again)."""
        epoch, limits = self._epoch, self._limits
        if seq in epoch.held:
            return True
        full = len(epoch.held) >= limits.held_batches or epoch.held_bytes + len(payload) > limits.held_bytes
        if full and seq != epoch.next:
            return False
        epoch.held[seq] = payload
        epoch.held_bytes += len(payload)
        return True

    def _drain(self) -> list[Effect]:
        """Apply what is next as far as it is there."""
        epoch = self._epoch
        effects: list[Effect] = []
        while (payload := epoch.held.pop(epoch.next, None)) is not None:
            epoch.held_bytes -= len(payload)
            epoch.seen[epoch.next] = hash(payload)
            epoch.started = True
            effects.append(Apply(Seq(epoch.next), payload))
            epoch.next += 1
            if len(epoch.seen) > self._limits.fingerprints:
                del epoch.seen[next(iter(epoch.seen))]
        return effects

    def _skip_to(self, seq: int) -> list[Effect]:
        """Accept that what is missing before ``seq`` is lost, and go on right after the last missing batch."""
        epoch = self._epoch
        target = seq
        while target > epoch.next and target - 1 in epoch.held:
            target -= 1
        lost = target - epoch.next
        for old in [held for held in epoch.held if held < target]:
            epoch.held_bytes -= len(epoch.held.pop(old))
        epoch.next = target
        if lost == 0:
            return []
        return [Forget(lost)] if epoch.started else [Count("late_starts")]

    _TABLE: ClassVar[dict[tuple[Phase, type[Input]], Callable[[Follower, Any], list[Effect]]]] = {
        (Phase.FOLLOWING, Live): _on_live,
        (Phase.FOLLOWING, Tick): _on_tick_following,
        (Phase.FOLLOWING, Restarted): _on_restarted,
        (Phase.FILLING, Live): _on_live,
        (Phase.FILLING, Replayed): _on_replayed,
        (Phase.FILLING, ReplayEnded): _on_ended,
        (Phase.FILLING, ReplayFailed): _on_failed,
        (Phase.FILLING, Restarted): _on_restarted,
        (Phase.PROBING, Live): _on_live,
        (Phase.PROBING, Replayed): _on_replayed,
        (Phase.PROBING, ReplayEnded): _on_ended,
        (Phase.PROBING, ReplayFailed): _on_failed,
        (Phase.PROBING, Restarted): _on_restarted,
        (Phase.WAITING, Live): _on_live,
        (Phase.WAITING, Tick): _on_tick_waiting,
        (Phase.WAITING, Restarted): _on_restarted,
    }
