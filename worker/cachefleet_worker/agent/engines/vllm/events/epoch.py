"""State of one engine process's stream: next number, batches held back, fingerprints of batches seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cachefleet_worker.agent.engines.vllm.events.messages import Seq


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
    """The first replay may end before the live socket is connected: what came between is asked for soon."""
    restore_base_seconds: float = 1.0
    restore_cap_seconds: float = 300.0
    """Between the first two snapshots; doubled after each one that no mark confirmed."""
    restore_retry_seconds: float = 30.0
    """From the last failed attempt to the next try."""
    unproven_seconds: float = 5.0
    """How long unproven blocks are still reported while a snapshot is awaited."""


@dataclass(slots=True)
class Epoch:
    """The stream of one engine process."""

    limits: Limits
    next: int = 0
    highest: int = -1
    """Highest number of a live batch; -1 before the first."""
    covered: int = -1
    """Number of the last snapshot: live batches up to it may still arrive."""
    started: bool = False
    caught_up: bool = False
    held: dict[int, bytes] = field(default_factory=dict)
    held_bytes: int = 0
    _seen: dict[int, int] = field(default_factory=dict)

    def is_duplicate(self, seq: int, payload: bytes) -> bool:
        """Whether exactly this batch was seen or is held back."""
        return self.held.get(seq) == payload or self._seen.get(seq) == hash(payload)

    def contradicts(self, seq: int, payload: bytes) -> bool:
        """Whether another batch had this number."""
        if seq in self.held:
            return self.held[seq] != payload
        return seq < self.next and self._seen.get(seq, hash(payload)) != hash(payload)

    def is_late(self, seq: int, payload: bytes) -> bool:
        """Whether a snapshot, a replay or a skip has overtaken a live batch that had to wait in the agent's socket."""
        overtaken = seq <= self.covered or (seq < self.next and self._seen.get(seq, hash(payload)) == hash(payload))
        return self.highest < seq and overtaken

    @property
    def behind(self) -> bool:
        """Whether the next batch may still come by the live socket, which has given none after it."""
        return self.started and self.highest < self.next

    def pass_over(self, seq: int, payload: bytes) -> None:
        """Skip a late live batch: what it did is known."""
        self.highest = seq
        self._see(seq, payload)

    def hold(self, seq: int, payload: bytes) -> bool:
        """Keep a batch until its turn; False where there is no room (it can be replayed)."""
        if seq in self.held:
            return True
        limits = self.limits
        full = len(self.held) >= limits.held_batches or self.held_bytes + len(payload) > limits.held_bytes
        if full and seq != self.next:
            return False
        self.held[seq] = payload
        self.held_bytes += len(payload)
        return True

    def drain(self) -> Iterator[tuple[Seq, bytes]]:
        """The next consecutive batches; each counts as applied."""
        while self.next in self.held:
            seq, payload = Seq(self.next), self._drop(self.next)
            self.started = True
            self.next += 1
            yield seq, payload

    def _see(self, seq: int, payload: bytes) -> None:
        self._seen[seq] = hash(payload)
        if len(self._seen) > self.limits.fingerprints:
            del self._seen[next(iter(self._seen))]

    def skip_to(self, seq: int) -> int:
        """Go on at ``seq``, or right after the last missing batch before it; returns how many are lost."""
        target = seq
        while target > self.next and target - 1 in self.held:
            target -= 1
        lost = target - self.next
        self._go_on_at(target)
        return lost

    def restore(self, seq: int) -> None:
        """Everything up to ``seq`` is applied, by a snapshot."""
        self._go_on_at(seq + 1)
        self.covered = seq
        self.started = True

    def _go_on_at(self, seq: int) -> None:
        for old in [held for held in self.held if held < seq]:
            self._drop(old)
        self.next = seq

    def _drop(self, seq: int) -> bytes:
        payload = self.held.pop(seq)
        self.held_bytes -= len(payload)
        self._see(seq, payload)
        return payload
