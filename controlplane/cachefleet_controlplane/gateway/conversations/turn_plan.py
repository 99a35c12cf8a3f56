"""Plans how a turn is continued: by handle, by a verified prefix, or in full; outcomes of turns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.conversations.checkpoint import KEY_BYTES, NOWHERE, Checkpoint, Fresh, Place
from cachefleet_core.continuation import MISMATCHES


class TurnOutcome(StrEnum):
    """One for each turn of a named conversation; a metric's label. None is an error of the request."""

    OFF = "off"
    """A pool of the model keeps no checkpoints."""
    NO_CHECKPOINT = "no_checkpoint"
    """The conversation's first turn."""
    SHORTCUT_HIT = "endpoint_local_shortcut_hit"
    ARTIFACT_HIT = "artifact_hit"
    """The remembered prefix is a strict prefix of the fresh prompt and ends at a safe boundary."""
    ARTIFACT_MISS = "artifact_miss"
    """The checkpoint does not fit this prompt, which was not rendered, or is no continuation of it."""
    ARTIFACT_EXPIRED = "artifact_expired"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    RECEIPT_INVALID = "router_receipt_invalid_or_expired"
    """Its block keys were made under another contract or salt than the fleet has now."""
    SHORTCUT_MISS = "endpoint_local_shortcut_miss"
    """The worker chosen does not have the handle: another worker, or the same in another epoch."""
    BOUNDARY_REJECTED = "safe_boundary_rejected"
    CONFLICT = "logical_checkpoint_conflict"
    """Another turn on the same head was accepted first; this one was answered, without a checkpoint."""
    STORE_FAILED = "store_failed"


class Why(StrEnum):
    """Why a prefix is not continued; finer than TurnOutcome."""

    NONE = ""
    NOT_RENDERED = "not_rendered"
    COUNT_MISMATCH = "count_mismatch"
    NO_MARGINAL_SUFFIX = "no_marginal_suffix"
    NOT_A_PREFIX = "not_a_prefix"
    """The prompt does not begin with the remembered prefix: the conversation went back."""
    NOT_VERIFIABLE = "not_verifiable"
    """Neither ids nor block keys reach far enough to tell."""
    BOUNDARY_NOT_PROVEN = "boundary_not_proven"
    IDS_NOT_AT_HAND = "ids_not_at_hand"
    """Verified by block keys alone, which do not cover the tokens after the last whole block."""
    HANDLES_OFF = "handles_off"
    NOT_CERTIFIED = "not_certified"
    NO_HANDLE = "no_handle"
    OTHER_WORKER = "other_worker"
    OTHER_EPOCH = "other_epoch"


class PlanKind(StrEnum):
    """How a turn is continued; the cheapest way first."""

    SHORTCUT = "shortcut"
    """By a handle and the ids that follow it."""
    ARTIFACT = "artifact"
    """The prefix is verified, so its ids may stand for the text."""
    FULL = "full"


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """What the pools allow, and the worker that the request goes to."""

    place: Place = NOWHERE
    handles: bool = False
    certified: bool = False


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """How a turn is continued, its outcome, and why not in a cheaper way; ``prefix_tokens`` were verified."""

    kind: PlanKind
    outcome: TurnOutcome
    why: str = Why.NONE
    """A Why, or the name of the fingerprint that differs."""
    prefix_tokens: int = 0
    checked: bool = False
    """The prefix was compared with the fresh prompt, whatever the result."""

    @property
    def verified(self) -> bool:
        """The prefix is verified, so that a handle or its ids may be used."""
        return self.kind is not PlanKind.FULL


Check = Callable[[Checkpoint, Fresh], TurnPlan | None]


def plan(checkpoint: Checkpoint | None, fresh: Fresh, *, now: float, limits: TurnLimits) -> TurnPlan:
    """Return how the turn of ``fresh`` continues ``checkpoint``; ``now`` in Unix seconds."""
    if checkpoint is None:
        return TurnPlan(PlanKind.FULL, TurnOutcome.NO_CHECKPOINT)
    if checkpoint.expires <= now:
        return TurnPlan(PlanKind.FULL, TurnOutcome.ARTIFACT_EXPIRED)
    refused = next(_refusals(checkpoint, fresh), None)
    return refused or _shortest(checkpoint, fresh, limits)


def _refusals(checkpoint: Checkpoint, fresh: Fresh) -> Iterator[TurnPlan]:
    for check in _CHECKS:
        refused = check(checkpoint, fresh)
        if refused is not None:
            yield refused


def _same_receipt(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    if not fresh.tokens:
        return TurnPlan(PlanKind.FULL, TurnOutcome.ARTIFACT_MISS, Why.NOT_RENDERED)
    same = checkpoint.receipt == fresh.receipt
    return None if same else TurnPlan(PlanKind.FULL, TurnOutcome.RECEIPT_INVALID)


def _same_fingerprints(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    before, now = msgspec.structs.asdict(checkpoint.fingerprints), msgspec.structs.asdict(fresh.fingerprints)
    differs = next((name for name in MISMATCHES if before[name] != now[name]), None)
    return None if differs is None else TurnPlan(PlanKind.FULL, TurnOutcome.FINGERPRINT_MISMATCH, differs)


def _sound_count(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    tokens = checkpoint.prefix_tokens
    if not 0 < tokens <= checkpoint.prompt_tokens:
        return _miss(Why.COUNT_MISMATCH)
    if tokens > fresh.tokens:
        return _miss(Why.NOT_A_PREFIX)
    return _miss(Why.NO_MARGINAL_SUFFIX) if tokens == fresh.tokens else None


def _strict_prefix(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    tokens = checkpoint.prefix_tokens
    if _by_ids(checkpoint, fresh):
        return None if fresh.hash_of(tokens) == checkpoint.prefix_hash else _miss(Why.NOT_A_PREFIX)
    end = KEY_BYTES * (tokens // checkpoint.block_size) if checkpoint.block_size else 0
    if not end or min(len(checkpoint.keys), len(fresh.keys)) < end:
        return _miss(Why.NOT_VERIFIABLE, checked=False)
    # A key commits to everything before it: the last one says as much as all of them.
    same = fresh.keys[end - KEY_BYTES : end] == checkpoint.keys[end - KEY_BYTES : end]
    return None if same else _miss(Why.NOT_A_PREFIX)


def _at_boundary(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    """Proposed by the renderer both times (A7): tokens within a message may merge with those that follow."""
    proven = checkpoint.ends_at_boundary and checkpoint.prefix_tokens in fresh.boundaries
    if proven:
        return None
    return TurnPlan(PlanKind.FULL, TurnOutcome.BOUNDARY_REJECTED, Why.BOUNDARY_NOT_PROVEN, checked=True)


_CHECKS: Final[tuple[Check, ...]] = (_same_receipt, _same_fingerprints, _sound_count, _strict_prefix, _at_boundary)


def _shortest(checkpoint: Checkpoint, fresh: Fresh, limits: TurnLimits) -> TurnPlan:
    """The cheapest plan for a verified prefix: a handle only at its own worker, in the epoch that made it (A9)."""
    tokens = checkpoint.prefix_tokens
    why = _no_shortcut(checkpoint, fresh, limits)
    if why is Why.NONE:
        return TurnPlan(PlanKind.SHORTCUT, TurnOutcome.SHORTCUT_HIT, prefix_tokens=tokens, checked=True)
    allowed = limits.handles and limits.certified and checkpoint.handle is not None
    outcome = TurnOutcome.SHORTCUT_MISS if allowed else TurnOutcome.ARTIFACT_HIT
    return TurnPlan(PlanKind.ARTIFACT, outcome, why, prefix_tokens=tokens, checked=True)


def _no_shortcut(checkpoint: Checkpoint, fresh: Fresh, limits: TurnLimits) -> Why:
    reasons = {
        Why.HANDLES_OFF: not limits.handles,
        Why.NOT_CERTIFIED: not limits.certified,
        Why.NO_HANDLE: checkpoint.handle is None,
        Why.IDS_NOT_AT_HAND: not _by_ids(checkpoint, fresh),
        Why.OTHER_WORKER: checkpoint.worker != limits.place.worker,
        Why.OTHER_EPOCH: checkpoint.epoch != limits.place.epoch,
    }
    return next((why for why, holds in reasons.items() if holds), Why.NONE)


def _by_ids(checkpoint: Checkpoint, fresh: Fresh) -> bool:
    return fresh.ids is not None and bool(checkpoint.prefix_hash)


def _miss(why: Why, *, checked: bool = True) -> TurnPlan:
    return TurnPlan(PlanKind.FULL, TurnOutcome.ARTIFACT_MISS, why, checked=checked)
