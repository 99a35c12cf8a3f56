"""Answers about the last hour: its steps, tokens lost by cause, and hot prefixes."""

from __future__ import annotations

from datetime import datetime

from cachefleet_controlplane.admin.decisions.decision_schemas import LostTokens
from cachefleet_controlplane.admin.schemas import Ratio, Schema
from cachefleet_controlplane.prompt_causes.prompt_cause import PromptCause
from cachefleet_controlplane.routing.lost_tokens import LostCause


class HistoryPoint(Schema):
    """One step. Tokens and requests are those of answers that ended in it; the rest is as it was near its end.

    Null is what was not sampled, or what nobody told.
    """

    at: datetime
    """Its beginning."""
    requests: int
    failed: int = 0
    """Besides these: requests that got an error of the service (5xx), or a stream that broke."""
    prompt_tokens: int
    served_tokens: int
    """From caches."""
    recomputed_tokens: int
    """Prompt tokens that were not served from caches: those of lostTokens together."""
    lost_tokens: dict[LostCause, int]
    """By cause; causes without tokens are left out."""
    ttft_seconds: float | None
    """Mean time to the first token of streamed answers."""
    running: int | None
    waiting: int | None
    """In the engines' own queues."""
    queued: int | None
    """At the gateway; requests wait there for a model, so that pools of one model show the same."""
    held_blocks: int | None
    idle_blocks: int | None
    """Of these, what no running request uses: what the budget bounds."""
    budget_blocks: int | None
    """Idle blocks that the workers may keep, in all."""
    hit_ratio: Ratio | None
    """By the engines' own counters, over the window of the pool's objective."""


class History(Schema):
    """The last hour, first to last; steps in which nothing was heard are left out."""

    step_seconds: int
    points: tuple[HistoryPoint, ...]


class FirstSeen(Schema):
    """First-seen tokens of one cause in prompts."""

    cause: PromptCause
    why: str
    """The cause in words."""
    tokens: int


class LostBucket(Schema):
    """What was lost in one span of time that begins at ``at``."""

    at: datetime
    prompt_tokens: int
    served_tokens: int
    causes: dict[LostCause, int]


class LostHits(Schema):
    """Tokens that were not served from cache, by cause, most first; they add up to promptTokens - servedTokens."""

    since: datetime
    until: datetime
    prompt_tokens: int
    served_tokens: int
    causes: tuple[LostTokens, ...]
    first_seen: tuple[FirstSeen, ...] = ()
    """Those first seen, by cause in the prompt, most first; they add up to them."""
    shortfall_tokens: int = 0
    """Served from cache less than was predicted when requests were routed."""
    surplus_tokens: int = 0
    """Served beyond that."""
    bucket_seconds: int
    buckets: tuple[LostBucket, ...]
    """First to last; spans in which nothing was answered are left out."""


class PromptCauseOfTenant(Schema):
    """What one cause at one place of a tenant's prompts costs."""

    pool: str
    """As "namespace/name"."""
    tenant: str
    cause: PromptCause
    why: str
    """The cause in words."""
    part: str
    """The part of prompts that changes: tools, system, message, reasoning, tool_calls, media, or empty."""
    role: str
    """Of its message."""
    mend: str
    """What the prompts' author can do."""
    tokens: int
    """Computed for it in the last hour, that would have been served from cache without it."""
    points: float
    """By how many percentage points the tenant's hit ratio in this pool would be higher."""
    tokens_per_day: int
    """At the last hour's pace."""


class PromptCauses(Schema):
    """The dearest causes in prompts by tenant, the one of most tokens first."""

    items: tuple[PromptCauseOfTenant, ...]


class HotPrefix(Schema):
    """A beginning that prompts share. Prefixes may be beginnings of each other: what they save does not add up."""

    name: str
    """A keyed hash; nothing of its text."""
    tenant: str
    """Empty where tenants share their blocks."""
    model: str
    """As "namespace/name"."""
    tokens: int
    requests: int
    """For it, since it is known to be shared."""
    heat: float
    """The same, halved every ten minutes by default: the list is in this order."""
    saved_tokens: int
    """Of it, served from caches in all these requests."""
    holders: tuple[str, ...]
    """Workers that hold its first and its last block, by id; not all where there are many."""
    holder_count: int
    warm: bool
    """A warm prefix of a pool begins with it, so that workers cache it before they take traffic."""


class HotPrefixList(Schema):
    """The hottest prefixes, hottest first."""

    items: tuple[HotPrefix, ...]
