"""Plans the next attempt of a request: its threshold, whether a Prefill worker goes first, and its body.

A refusal by a worker's gate is handled by the gateway. The client gets it only where it has set a threshold itself, in
a fleet that is not split into Prefill and Decode pools. ``attempt_mode`` is this table; the first row that holds
counts:

==============  =====================================================  =================================================
attempt         where                                                  is sent
==============  =====================================================  =================================================
as asked        an API that cannot express a refusal; or the caller's  as it came; a refusal is the caller's
                own threshold, in a fleet that is not split
open            its prompt was computed by a Prefill worker just now   with 0, and its transfer parameters
prefill first   for a Decode worker, which has no threshold            (to a Prefill worker)
(split_roles)
(gate_refused)  for a Decode worker, and one has refused it
(below_...)     for a Decode worker that holds less than the
                threshold, by an exact index
gated           for a Decode worker                                    with the threshold
gated           for another worker that is predicted to hold enough,   with the threshold
                and it is not the last attempt there may be
open            otherwise, in a fleet with a threshold, or after a     with 0
                refusal
as asked        otherwise                                              as it came; a refusal is not the caller's
==============  =====================================================  =================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import THRESHOLD_FIELD, TRANSFER_FIELD
from cachefleet_controlplane.gateway.request.hit_thresholds import HitThresholds
from cachefleet_controlplane.gateway.retry.resume import Resumption
from cachefleet_controlplane.gateway.retry.retry_state_machine import Progress
from cachefleet_controlplane.gateway.send.answers.gate_refusals import (
    Refusal,
    UnreadableAnswerError,
    Watch,
    mentions_refusal,
    refusal_of,
)
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Reason, Verdict
from cachefleet_controlplane.wire.json_members import edited, encode


class AttemptMode(Struct, frozen=True):
    """How one attempt is sent."""

    threshold: float | None = None
    """The hit threshold that it is sent with; None: the gateway sets none."""
    watched: bool = False
    """The gateway acts on a refusal."""
    prefill: Reason | None = None
    """Why a Prefill worker has to compute the prompt first."""
    transferred: bool = False
    """A Prefill worker has computed it."""


AS_ASKED = AttemptMode()


def attempt_mode(
    gate: HitThresholds, decision: Decision, progress: Progress, *, resumed: bool, max_attempts: int
) -> AttemptMode:
    """Return the mode for the worker decided on; ``resumed``: another one has produced some of the answer."""
    if not gate.speaks or gate.callers:
        return AS_ASKED
    if progress.transferred:
        return AttemptMode(threshold=0.0, transferred=True)
    if gate.decodes(decision.pool):
        return _decoding(gate, decision, progress, resumed=resumed)
    if resumed:
        return AS_ASKED  # the rest of an answer is asked for with 0 already
    threshold, last = gate.threshold(decision.pool), progress.refusals + 1 >= max_attempts
    if threshold > 0 and gate.one_prompt and not last and _promised(decision) >= threshold:
        return AttemptMode(threshold=threshold, watched=True)
    return AttemptMode(threshold=0.0) if gate.ours or progress.refusals else AttemptMode(watched=True)


def foreseen(gate: HitThresholds, decision: Decision) -> Decision:
    """Return a decision with the verdict that a first attempt's mode gives it; nothing is sent."""
    if decision.verdict is not Verdict.ROUTE:
        return decision
    reason = attempt_mode(gate, decision, Progress(), resumed=False, max_attempts=1).prefill
    return decision if reason is None else replace(decision, verdict=Verdict.PREFILL_FIRST, reason=reason)


def _decoding(gate: HitThresholds, decision: Decision, progress: Progress, *, resumed: bool) -> AttemptMode:
    threshold = gate.threshold(decision.pool)
    reason = _prefill(gate, decision, progress, threshold)
    if reason is not None:
        return AttemptMode(prefill=reason)
    return AttemptMode(threshold=0.0) if resumed else AttemptMode(threshold=threshold, watched=True)


def _prefill(gate: HitThresholds, decision: Decision, progress: Progress, threshold: float) -> Reason | None:
    if not gate.decode_first(decision.pool):
        return Reason.SPLIT_ROLES
    if progress.refusals:
        return Reason.GATE_REFUSED
    return Reason.BELOW_THRESHOLD if 0 <= _promised(decision) < threshold else None


def _promised(decision: Decision) -> float:
    """The hit ratio that an exact index predicts there; -1 where it predicts nothing."""
    if decision.knowledge is not Knowledge.EXACT or not decision.prompt_tokens:
        return -1.0
    return decision.predicted_tokens / decision.prompt_tokens


_KEY_BYTES: Final = 8


class Attempt(Struct):
    """What one worker is sent; ``watch`` is None where the gateway does not look for a refusal."""

    path: str = ""
    body: bytes = b""
    members: int = 0
    changes: Mapping[str, Raw | None] = {}
    """Members to be set in ``body``, or, of None, removed: a held request gets them late."""
    threshold: float | None = None
    watch: Watch | None = None
    hooked: bool = False
    """The caller's hook header for a worker's gate is sent along."""
    record: bytes = b""
    """What goes behind the body: what other workers have recorded of the answer."""

    def whole(self) -> bytes:
        """Make the changes in the body; return it."""
        if self.changes:
            self.body, self.members = edited(self.body, self.changes)
            self.changes = {}
        return self.body


class AttemptPlanner:
    """Plans the attempts of one request; ``transfer``: a Prefill worker's ``kv_transfer_params``."""

    def __init__(self, resuming: Resumption, *, max_attempts: int) -> None:
        self._resuming = resuming
        self._max_attempts = max_attempts
        self._mode = AS_ASKED
        self.attempt = Attempt()
        self.transfer: Raw | None = None

    def plan(self, decision: Decision, progress: Progress) -> AttemptMode:
        """Return, and keep, the mode of the next attempt for the worker just decided on."""
        gate, resumed = self._resuming.request.gate, self._resuming.resumed
        self._mode = attempt_mode(gate, decision, progress, resumed=resumed, max_attempts=self._max_attempts)
        return self._mode

    def next(self, progress: Progress) -> Attempt:
        """Return the attempt that was planned; it counts as under way from now on."""
        request, mode = self._resuming.request, self._mode
        judged = mode.watched and request.gate.speaks
        # Where nothing asks to be refused, all choices need not have begun before the first is relayed.
        choices = 1 if mode.threshold is None else request.info.choices
        first = progress.attempts == 1 and not progress.refusals
        self.attempt = Attempt(
            path=self._resuming.path,
            body=request.body,
            members=request.members,
            changes=self._changes(mode),
            threshold=mode.threshold,
            watch=Watch(choices) if judged else None,
            record=b"" if self._resuming.replay is None else self._resuming.replay.record,
            hooked=first and (request.gate.callers or (mode.watched and mode.threshold is not None)),
        )
        return self.attempt

    def begun(self) -> None:
        """The answer has begun: what was sent for it is not needed again."""
        self.attempt = replace(self.attempt, body=b"", changes={}, record=b"")

    def outcome(self, opened: AttemptResult) -> tuple[Outcome, Refusal | None]:
        """Return the outcome of an attempt's answer, or beginning of a stream, and the gate's refusal if any."""
        attempt = self.attempt
        if opened.outcome is Outcome.GATE_REFUSED:
            return opened.outcome, Refusal()
        if attempt.watch is None or opened.answer is None or opened.answer.status != 200:
            return opened.outcome, None
        if attempt.threshold is None and not mentions_refusal(opened.answer.body):
            return opened.outcome, None  # whether it can be read does not matter
        try:
            refusal = refusal_of(opened.answer.body)
        except UnreadableAnswerError:
            return (opened.outcome if attempt.threshold is None else Outcome.UNREADABLE), None
        return (opened.outcome, None) if refusal is None else (Outcome.GATE_REFUSED, refusal)

    def refuted(self, decision: Decision, refusal: Refusal, fleet: Fleet) -> None:
        """Mark blocks as refuted, not to be counted on for a while: the engine holds less than the index says."""
        request = self._resuming.request
        prompt, threshold = request.prompt, self.attempt.threshold
        if decision.knowledge is not Knowledge.EXACT or not prompt.block_size or not request.gate.one_prompt:
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
        gate = self._resuming.request.gate
        changes: dict[str, Raw | None] = {}
        if mode.threshold is not None:
            changes[THRESHOLD_FIELD] = Raw(encode(mode.threshold or 0))
            # An answer to a request with a threshold may be handed back unfinished, so only resumable ones have it.
            # The engine applies the same threshold to the others: it is its pool's policy.
            if mode.threshold > 0 and gate.own is None and not self._resuming.resumable:
                changes[THRESHOLD_FIELD] = None
            elif mode.threshold == 0 and gate.own is None and gate.ours:
                del changes[THRESHOLD_FIELD]  # the body has it
        if mode.transferred and self.transfer is not None:
            changes[TRANSFER_FIELD] = self.transfer
        return changes
