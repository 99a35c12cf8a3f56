"""Whether an engine runs or refuses a request it is about to admit, and whether it hands back a preempted one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_worker.plugin.policy import LivePolicy

FIELD: Final = "cache_hit_threshold"
RESUMABLE: Final = "cachefleet_resumable"

_GATED: Final = re.compile(r"(?:\d+_)?(?:chatcmpl|cmpl|generate-tokens)-")
_BEAM: Final = re.compile(r"-beam-\d+(?:-[0-9a-f]{8})?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request at its admission."""

    computed: int
    """Tokens that need no computing: cached here, or given by a connector."""
    needed: int
    """All its tokens: the prompt, and what a preempted request has produced."""
    own: float | None
    """Its own threshold; None where it has none."""
    resumable: bool
    """Whether its sender can go on elsewhere with what it gets back."""
    preemptions: int = 0

    @property
    def ratio(self) -> float:
        """0 to 1; an empty request needs nothing, so it is a full hit."""
        return min(1.0, self.computed / self.needed) if self.needed > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not run."""

    ratio: float
    threshold: float
    source: str
    """``request`` or ``global`` of a fresh request, ``preempted`` of one that is handed back."""


def is_threshold(value: object) -> bool:
    """Whether a value is a number from 0 to 1; True and NaN are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def own_threshold(extra_args: Mapping[str, Any] | None) -> float | None:
    """A request's own threshold. A malformed one, which the API server refuses where it sees it, counts as absent."""
    value = extra_args.get(FIELD) if extra_args else None
    return float(value) if value is not None and is_threshold(value) else None


def is_resumable(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether a request is marked, by its sender or by a threshold of its own above 0."""
    if not extra_args:
        return False
    return extra_args.get(RESUMABLE) == 1 or bool(own_threshold(extra_args))


def is_gated_endpoint(request_id: str) -> bool:
    """Whether a request came in by an API whose answers can say that it was refused: chat, completions, generate.

    Responses, transcriptions and others have no place for it, and a beam search asks many times for one answer.
    """
    return _GATED.match(request_id) is not None and _BEAM.search(request_id) is None


def refuse_fresh(candidate: Candidate, default: float) -> Refusal | None:
    """The refusal of a request that has not run yet. Its own threshold wins, also with 0, which always runs."""
    threshold = default if candidate.own is None else candidate.own
    if candidate.ratio >= threshold:
        return None
    return Refusal(candidate.ratio, threshold, "global" if candidate.own is None else "request")


def hand_back(candidate: Candidate, policy: LivePolicy) -> Refusal | None:
    """The hand-back of a preempted request, of a marked one only; the threshold of fresh requests does not count."""
    if not policy.hand_back or not candidate.resumable or candidate.ratio >= policy.reject_below:
        return None
    return Refusal(candidate.ratio, policy.reject_below, "preempted")
