"""When a request is refused at its admission, and when a preempted one is handed back. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_worker.plugin.live_policy import LivePolicy

FIELD: Final = "cache_hit_threshold"
RESUMABLE: Final = "cachefleet_resumable"

_GATED: Final = re.compile(r"(?:\d+_)?(?:chatcmpl|cmpl|generate-tokens)-")
_BEAM: Final = re.compile(r"-beam-\d+(?:-[0-9a-f]{8})?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A request at its admission."""

    computed: int
    """Tokens that need no prefill: cached here, or loaded by a connector."""
    needed: int
    """All its tokens: the prompt, and those a preempted request has produced."""
    own: float | None
    """Its own threshold; None for the policy's."""
    resumable: bool
    """Whether its sender can continue it on another worker."""
    preemptions: int = 0

    @property
    def ratio(self) -> float:
        """Cached share of its tokens, 0 to 1; 1 for an empty request."""
        return min(1.0, self.computed / self.needed) if self.needed > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not run: its hit ratio, the threshold, and where that came from."""

    ratio: float
    threshold: float
    source: str
    """``request`` or ``global`` for a fresh request; for one that is handed back ``preempted``, or ``leaving``: the
    worker goes.
    """


def is_threshold(value: object) -> bool:
    """Whether a value is a number from 0 to 1; True and NaN are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def own_threshold(extra_args: Mapping[str, Any] | None) -> float | None:
    """A request's own threshold; a malformed one, which the API server answers with 400, counts as absent."""
    value = extra_args.get(FIELD) if extra_args else None
    return float(value) if value is not None and is_threshold(value) else None


def is_resumable(extra_args: Mapping[str, Any] | None) -> bool:
    """Whether a request is marked resumable, by its sender or by an own threshold above 0."""
    if not extra_args:
        return False
    return extra_args.get(RESUMABLE) == 1 or bool(own_threshold(extra_args))


def is_gated_endpoint(request_id: str) -> bool:
    """Whether a request came by an API whose answers can express a refusal: chat, completions, generate.

    Responses, transcriptions and others cannot, and a beam search makes many requests for one answer.
    """
    return _GATED.match(request_id) is not None and _BEAM.search(request_id) is None


def refuse_fresh(candidate: Candidate, default: float) -> Refusal | None:
    """The refusal of a request that has not run yet, or None. Its own threshold wins; 0 always runs."""
    threshold = default if candidate.own is None else candidate.own
    if candidate.ratio >= threshold:
        return None
    return Refusal(candidate.ratio, threshold, "global" if candidate.own is None else "request")


def hand_back(candidate: Candidate, policy: LivePolicy) -> Refusal | None:
    """The hand-back of a preempted, resumable request, or None; the threshold of fresh requests does not apply."""
    if not policy.hand_back or not candidate.resumable or candidate.ratio >= policy.reject_below:
        return None
    return Refusal(candidate.ratio, policy.reject_below, "preempted")
