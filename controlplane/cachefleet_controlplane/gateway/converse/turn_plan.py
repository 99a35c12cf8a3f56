"""Whether a turn's prompt begins with what was remembered of the turn before; outcomes of turns. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.converse.checkpoint import KEY_BYTES, Checkpoint, Fresh
from cachefleet_controlplane.gateway.handles.sending import HandleOutcome
from cachefleet_core.block_keys import keyed_blocks
from cachefleet_core.continuation import MISMATCHES


class TurnOutcome(StrEnum):
    """One for each turn of a named conversation; a metric's label. None is an error of the request."""

    OFF = "off"
    """A pool of the model keeps no checkpoints."""
    NO_CHECKPOINT = "no_checkpoint"
    """The conversation's first turn."""
    SHORTCUT_HIT = "endpoint_local_shortcut_hit"
    """The worker kept the conversation, and was sent a handle and what is new."""
    ARTIFACT_HIT = "artifact_hit"
    """The remembered prefix is a strict prefix of the fresh prompt and ends at a safe boundary."""
    ARTIFACT_MISS = "artifact_miss"
    """The checkpoint does not fit this prompt, which was not rendered, or is no continuation of it."""
    ARTIFACT_EXPIRED = "artifact_expired"
    FINGERPRINT_MISMATCH = "fingerprint_mismatch"
    RECEIPT_INVALID = "router_receipt_invalid_or_expired"
    """Its block keys were made under another contract or salt than the fleet has now."""
    SHORTCUT_MISS = "endpoint_local_shortcut_miss"
    """A worker kept the conversation, but not the one that served the turn, or no longer."""
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


@dataclass(frozen=True, slots=True)
class TurnPlan:
    """A turn's outcome, and why its prompt continues nothing; ``prefix_tokens`` were verified."""

    outcome: TurnOutcome
    why: str = Why.NONE
    """A Why, or the name of the fingerprint that differs."""
    prefix_tokens: int = 0
    checked: bool = False
    """The prefix was compared with the fresh prompt, whatever the result."""

    @property
    def verified(self) -> bool:
        """The prompt begins with what was remembered."""
        return self.prefix_tokens > 0


_KEPT_NOT: Final = frozenset({TurnOutcome.OFF, TurnOutcome.CONFLICT, TurnOutcome.STORE_FAILED})

Check = Callable[[Checkpoint, Fresh], TurnPlan | None]


def plan(checkpoint: Checkpoint | None, fresh: Fresh, *, now: float) -> TurnPlan:
    """Return whether the turn of ``fresh`` continues ``checkpoint``; ``now`` in Unix seconds."""
    if checkpoint is None:
        return TurnPlan(TurnOutcome.NO_CHECKPOINT)
    if checkpoint.expires <= now:
        return TurnPlan(TurnOutcome.ARTIFACT_EXPIRED)
    found = TurnPlan(TurnOutcome.ARTIFACT_HIT, prefix_tokens=checkpoint.prefix_tokens, checked=True)
    return next(_refusals(checkpoint, fresh), found)


def with_handle(turn: TurnOutcome | None, used: HandleOutcome | None) -> TurnOutcome | None:
    """Return the outcome that is told of a request: that of its handle, unless the turn was not kept."""
    return turn if used is None or turn in _KEPT_NOT else TurnOutcome(used)


def _refusals(checkpoint: Checkpoint, fresh: Fresh) -> Iterator[TurnPlan]:
    for check in _CHECKS:
        refused = check(checkpoint, fresh)
        if refused is not None:
            yield refused


def _same_receipt(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    if not fresh.tokens:
        return TurnPlan(TurnOutcome.ARTIFACT_MISS, Why.NOT_RENDERED)
    same = checkpoint.receipt == fresh.receipt
    return None if same else TurnPlan(TurnOutcome.RECEIPT_INVALID)


def _same_fingerprints(checkpoint: Checkpoint, fresh: Fresh) -> TurnPlan | None:
    before, now = msgspec.structs.asdict(checkpoint.fingerprints), msgspec.structs.asdict(fresh.fingerprints)
    differs = next((name for name in MISMATCHES if before[name] != now[name]), None)
    return None if differs is None else TurnPlan(TurnOutcome.FINGERPRINT_MISMATCH, differs)


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
    end = KEY_BYTES * keyed_blocks(tokens, checkpoint.block_size, fresh.lookahead)
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
    return TurnPlan(TurnOutcome.BOUNDARY_REJECTED, Why.BOUNDARY_NOT_PROVEN, checked=True)


_CHECKS: Final[tuple[Check, ...]] = (_same_receipt, _same_fingerprints, _sound_count, _strict_prefix, _at_boundary)


def _by_ids(checkpoint: Checkpoint, fresh: Fresh) -> bool:
    return fresh.ids is not None and bool(checkpoint.prefix_hash)


def _miss(why: Why, *, checked: bool = True) -> TurnPlan:
    return TurnPlan(TurnOutcome.ARTIFACT_MISS, why, checked=checked)
