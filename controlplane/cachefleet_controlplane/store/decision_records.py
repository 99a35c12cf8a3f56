"""Records of decisions, as the store keeps them.

No prompt, token id, salt or credential has a field here.
"""

from __future__ import annotations

from enum import StrEnum
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct

from cachefleet_controlplane.routing.decision import CandidateScore


class EndedBy(StrEnum):
    """Who ended an answer before it was whole."""

    CLIENT = "client"
    GATEWAY = "gateway"
    """It found a stop string, or drains."""
    WORKER = "worker"
    """Its connection broke, it was silent for too long, or it sent an error."""


class AttemptRecord(Struct, frozen=True, omit_defaults=True):
    """One attempt to have a worker answer; ``status`` is the worker's HTTP status where it gave one.

    ``kind`` is "answer", or "prefill" where it computed the prompt for another worker. ``threshold`` is the share of
    the prompt that had to be cached, None where the gateway set none.
    """

    worker: str
    outcome: str
    status: int | None = None
    seconds: float | None = None
    kind: str = "answer"
    threshold: float | None = None
    unresumed: str = ""
    """Why no other worker went on with the answer that it had begun, as a code; "" where one did, or none had to."""


class CandidateRecord(Struct, frozen=True, array_like=True):
    """The cost of one worker in a decision: the parts of its score, in tokens and seconds.

    Stored as an array of its values, so a new field comes last and has a default.
    """

    worker: str
    pool: str
    matched_blocks: int
    predicted_tokens: int
    expected_tokens: int
    queued_tokens: int
    inflight_tokens: int
    uncached_tokens: int
    evicted_tokens: int
    tokens_per_second: float
    inter_token_seconds: float
    batched_tokens: int
    requests: int
    seconds: float
    report_age: float | None
    fits: bool
    worth_tokens: int = 0
    """These three: of evicted tokens those to be computed again, what others wait in all, and how much of its cost to
    others had been paid for by waiting."""
    others_seconds: float = 0.0
    paid_seconds: float = 0.0
    loaded_tokens: int = 0
    """These three: of expected tokens those loaded from below the device, in how long, and whether that rests on
    measurements."""
    loading_seconds: float = 0.0
    loading_measured: bool = False
    adapter_seconds: float = 0.0
    """Of loading the adapter onto its device, which is full of others; assumed."""
    needed_blocks: int = 0
    """These four: blocks it would take, may take, that stay free, and in all."""
    free_blocks: int | None = None
    reserved_blocks: int = 0
    total_blocks: int | None = None
    rank: int = 0
    chosen: bool = False
    matched_tokens: int = 0
    """Prompt tokens that the index says are held there; used only where the report is fresh."""

    @classmethod
    def of(cls, score: CandidateScore, *, block_size: int = 0, chosen: bool = False) -> CandidateRecord:
        """The record of a score; ``block_size`` in tokens."""
        rank = score.id.rpartition("#")[2]
        own = int(rank) if rank.isdecimal() else 0, chosen, score.matched_blocks * block_size
        values: tuple[Any, ...] = (*_of_score(score), *own)
        return cls(*values)


_OWN: Final = 3
"""The last fields, which are not those of a score."""
_of_score: Final = attrgetter(*CandidateRecord.__struct_fields__[:-_OWN])


class ShortfallRecord(Struct, frozen=True):
    """The engine served ``tokens`` less from its cache than was predicted for ``worker``, and why."""

    cause: str
    """A ``cache_shortfall.Cause``."""
    tokens: int
    worker: str


class PromptLossRecord(Struct, frozen=True, omit_defaults=True):
    """So many first-seen tokens have this cause in the prompt, and where it leaves its nearest earlier one."""

    cause: str
    """A ``prompt_cause.PromptCause``."""
    tokens: int
    position: int | None = None
    """Tokens before the first block that is another; None where there is nothing to mend."""
    part: str = ""
    """The part that is another: tools, system, message, reasoning, tool_calls or media."""
    role: str = ""
    """Of its message."""
    index: int | None = None
    """Of its message among all, or its place among the tools."""


class LostRecord(Struct, frozen=True):
    """So many tokens of the prompt were not served from cache, and why."""

    cause: str
    """A ``lost_tokens.LostCause``."""
    tokens: int
    prompt: tuple[PromptLossRecord, ...] = ()
    """The causes in the prompt of those first seen, which add up to them."""


class DecisionRecord(Struct, frozen=True):
    """One request: where it went, why, and what the cache then did. ``at`` is Unix time in seconds.

    ``cached_tokens`` and what follows it are None where the answer did not tell or did not come; ``status`` is the HTTP
    status the client got (499 where it went away before one). ``candidates`` are those that ``leading_places`` selects,
    the chosen one first, and ``candidates_left_out`` is the number of the others. ``queued_seconds`` is how
    long it waited for room, None where it did not. ``tenant`` is "" in the oldest records; ``isolation`` is its pools'
    rule, with the version of the salt where that is one for each tenant. ``rung`` is where the prompt's ids came from,
    ``render_failure`` why there are none. ``lost`` is in the order of the prompt, and adds up to the tokens that the
    engine counted less those cached (a Prefill worker's, where one computed the prompt); empty where that is not known.
    """

    id: str
    at: float
    model: str
    pool: str
    endpoint: str
    policy: str
    verdict: str
    reason: str
    worker: str
    knowledge: str
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_seconds: float | None = None
    status: int = 0
    attempts: tuple[AttemptRecord, ...] = ()
    candidates: tuple[CandidateRecord, ...] = ()
    candidates_left_out: int = 0
    queued_seconds: float | None = None
    tenant: str = ""
    isolation: str = ""
    salt_version: int | None = None
    rung: str = ""
    render_failure: str | None = None
    shortfall: ShortfallRecord | None = None
    lost: tuple[LostRecord, ...] = ()
    continuation: str | None = None
    """A ``turn_plan.TurnOutcome``; None where the request names no conversation."""
    request_id: str | None = None
    """The client's ``x-request-id``; None where it sent none that can be kept."""
    ended_by: EndedBy | None = None
    """None where the answer came whole, or none was begun. Then ``completion_tokens`` are those known to be made."""

    def made(self) -> DecisionRecord:
        """Itself: see LaterRecord."""
        return self

    stored = made
