"""What one request's next attempt is: ``gating.course`` carried out on its body."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.threshold import FIELD
from cachefleet_controlplane.gateway.attempts.gate_check import AS_ASKED, AttemptMode, attempt_mode
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.attempts.state_machine import Progress
from cachefleet_controlplane.gateway.upstream.client import Opened
from cachefleet_controlplane.gateway.upstream.gate_refusals import (
    Refusal,
    UnreadableAnswerError,
    Watch,
    mentions_refusal,
    refusal_of,
)
from cachefleet_controlplane.gateway.upstream.outcome import Outcome
from cachefleet_controlplane.routing.decision import Decision, Knowledge
from cachefleet_controlplane.wire.json_edits import edited
from cachefleet_controlplane.wire.json_members import encode

TRANSFER: Final = "kv_transfer_params"
_KEY_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one worker is sent. ``watch`` is None where a refusal is none of our business."""

    path: str = ""
    body: bytes = b""
    members: int = 0
    threshold: float | None = None
    watch: Watch | None = None
    hooked: bool = False
    """The caller's hook for a worker's gate may go along."""


class AttemptPlanner:
    """Of one request; ``transfer`` is where a Prefill worker said that its blocks are."""

    def __init__(self, resuming: Resumption, *, max_attempts: int) -> None:
        self._resuming = resuming
        self._max_attempts = max_attempts
        self._mode = AS_ASKED
        self.attempt = Attempt()
        self.transfer: Raw | None = None

    def plan(self, decision: Decision, progress: Progress) -> AttemptMode:
        """How the next attempt goes, for the worker that was just decided on."""
        gate, resumed = self._resuming.routing_input.gate, self._resuming.resumed
        self._mode = attempt_mode(gate, decision, progress, resumed=resumed, max_attempts=self._max_attempts)
        return self._mode

    def next(self, progress: Progress) -> Attempt:
        """The attempt for it, which is under way from now on."""
        routing_input, mode = self._resuming.routing_input, self._mode
        changes = self._changes(mode)
        body, members = edited(routing_input.body, changes) if changes else (routing_input.body, routing_input.sent)
        judged = mode.watched and routing_input.gate.speaks
        # Where nothing asks to be refused, all choices need not have begun before the first is relayed.
        choices = 1 if mode.threshold is None else routing_input.ask.choices
        first = progress.attempts == 1 and not progress.refusals
        self.attempt = Attempt(
            path=self._resuming.path,
            body=body,
            members=members,
            threshold=mode.threshold,
            watch=Watch(choices) if judged else None,
            hooked=first and (routing_input.gate.callers or (mode.watched and mode.threshold is not None)),
        )
        return self.attempt

    def outcome(self, opened: Opened) -> tuple[Outcome, Refusal | None]:
        """What an attempt's beginning or whole answer means."""
        attempt = self.attempt
        if opened.outcome is Outcome.GATE_REFUSED:
            return opened.outcome, Refusal()
        if attempt.watch is None or opened.answer is None or opened.answer.status != 200:
            return opened.outcome, None
        if attempt.threshold is None and not mentions_refusal(opened.answer.body):
            return opened.outcome, None  # nothing hangs on whether it can be read
        try:
            refusal = refusal_of(opened.answer.body)
        except UnreadableAnswerError:
            return (opened.outcome if attempt.threshold is None else Outcome.UNREADABLE), None
        return (opened.outcome, None) if refusal is None else (Outcome.GATE_REFUSED, refusal)

    def refuted(self, decision: Decision, refusal: Refusal, fleet: Fleet) -> None:
        """The engine holds less than the index says: do not count on it for a while."""
        routing_input = self._resuming.routing_input
        prompt, threshold = routing_input.prompt, self.attempt.threshold
        if decision.knowledge is not Knowledge.EXACT or not prompt.block_size or not routing_input.gate.one_prompt:
            return
        if refusal.hit_tokens is not None:
            held = refusal.hit_tokens // prompt.block_size
            fleet.refuted_blocks.add(decision.id, prompt.keys, lacking=held, held=held)
            return
        # So many blocks would have been enough, so the last of them is lacking; of the others nothing is known.
        enough = math.ceil((threshold or 0.0) * prompt.tokens / prompt.block_size)
        lacking = min(max(1, enough), len(prompt.keys) // _KEY_BYTES) - 1
        if lacking >= 0:
            fleet.refuted_blocks.add(decision.id, prompt.keys, lacking=lacking, held=0)

    def _changes(self, mode: AttemptMode) -> dict[str, Raw | None]:
        gate = self._resuming.routing_input.gate
        changes: dict[str, Raw | None] = {}
        if mode.threshold is not None:
            changes[FIELD] = Raw(encode(mode.threshold or 0))
            # Who brings a threshold may be handed back its answer half done: only one that can go on elsewhere does.
            # The engine holds the others to the same one, which is its pool's policy.
            if mode.threshold > 0 and gate.own is None and not self._resuming.resumable:
                changes[FIELD] = None
            elif mode.threshold == 0 and gate.own is None and gate.ours:
                del changes[FIELD]  # the body has it
        if mode.transferred and self.transfer is not None:
            changes[TRANSFER] = self.transfer
        return changes
