"""What became of a turn's continuation, as records, metrics and docs/continuation.md name it."""

from __future__ import annotations

from enum import StrEnum


class TurnOutcome(StrEnum):
    """One for each turn of a named conversation. None of them is an error of the request."""

    OFF = "off"
    """A pool of the model keeps no checkpoints."""
    NO_CHECKPOINT = "no_checkpoint"
    """The conversation's first turn."""
    SHORTCUT_HIT = "endpoint_local_shortcut_hit"
    ARTIFACT_HIT = "artifact_hit"
    """The prefix remembered is a strict prefix of the fresh prompt and ends at a safe boundary."""
    ARTIFACT_MISS = "artifact_miss"
    """What is remembered is of no use for this prompt: it was not rendered, or the conversation went back."""
    ARTIFACT_EXPIRED = "artifact_expired"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    RECEIPT_INVALID = "router_receipt_invalid_or_expired"
    """Its block keys were made under another contract or salt than the fleet has now."""
    SHORTCUT_MISS = "endpoint_local_shortcut_miss"
    """The worker chosen does not have the handle: another one, or the same in another life."""
    BOUNDARY_REJECTED = "safe_boundary_rejected"
    CONFLICT = "logical_checkpoint_conflict"
    """Another turn on the same head was accepted first; this one was answered and leaves nothing."""
    STORE_FAILED = "store_failed"


class Why(StrEnum):
    """Why a prefix is not continued; finer than Outcome."""

    NONE = ""
    NOT_RENDERED = "not_rendered"
    COUNT_MISMATCH = "count_mismatch"
    NO_MARGINAL_SUFFIX = "no_marginal_suffix"
    NOT_A_PREFIX = "not_a_prefix"
    """The conversation went back behind what is remembered."""
    NOT_VERIFIABLE = "not_verifiable"
    """Neither ids nor block keys reach far enough to tell."""
    BOUNDARY_NOT_PROVEN = "boundary_not_proven"
    IDS_NOT_AT_HAND = "ids_not_at_hand"
    """Verified by block keys alone, which say nothing of the tokens behind the last whole block."""
    HANDLES_OFF = "handles_off"
    NOT_CERTIFIED = "not_certified"
    NO_HANDLE = "no_handle"
    OTHER_WORKER = "other_worker"
    OTHER_EPOCH = "other_epoch"
