"""Sections of a pool's spec on its caches and requests: budget, hits, preemption, admission, tenants, rollout,
InferencePool.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from cachefleet_core.pool.section import (
    BY_NAME,
    LABEL_NAME,
    LABEL_VALUE,
    Label,
    MiB,
    Ratio,
    Rule,
    Section,
    Tenant,
    unique_names,
)

MAX_MESSAGES: Final = 1_000_000
"""Characters of a warm prefix."""
MAX_MESSAGES_BYTES: Final = 1024 * 1024 - 4096
"""Bytes of the texts of a warm prefix as JSON; what a frame to an agent takes, less the JSON around them."""
MAX_TENANT_SHARES: Final = 256
MAX_CONTRACTS: Final = 64
"""Cache contracts of a pool."""
_ROUNDING: Final = 1e-6
"""By which a sum of shares may be above 1."""
MAX_PRICE: Final = 1000
MAX_KEEP_ALIVE_SECONDS: Final = 300
MAX_LABELS: Final = 8
"""Labels by which an InferencePool selects workers."""


class MessageRole(StrEnum):
    """Who speaks in a message of a warm prefix."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"


class PreemptionPolicy(StrEnum):
    """What becomes of a request that its engine preempted."""

    HAND_BACK = "HandBack"
    RECOMPUTE = "Recompute"


class Isolation(StrEnum):
    """Who may share cached blocks."""

    PER_TENANT = "PerTenant"
    SHARED = "Shared"


class FailureMode(StrEnum):
    """What a gateway does with requests while the endpoint picker does not answer."""

    FAIL_OPEN = "FailOpen"
    FAIL_CLOSE = "FailClose"


class Message(Section):
    """One message of a warm prefix."""

    role: Annotated[MessageRole, Field(strict=False)]
    """Who speaks."""
    content: Annotated[str, Field(min_length=1, max_length=262_144)]
    """What is said."""


class WarmPrefix(Section):
    """A prompt that every worker caches before it takes traffic."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="tenants",
            cel="",  # the list is a set, which the API server keeps unique by itself
            message="must not name a tenant twice",
            holds=lambda prefix: len(set(prefix.tenants)) == len(prefix.tenants),
        ),
        Rule(
            field="messages",
            cel="self.messages.map(m, size(m.content)).sum() <= 1000000",
            message="must together have at most 1000000 characters, and 1 MiB as JSON",
            holds=lambda prefix: (
                sum(len(message.content) for message in prefix.messages) <= MAX_MESSAGES
                and sum(len(json.dumps(message.content, ensure_ascii=False).encode()) for message in prefix.messages)
                <= MAX_MESSAGES_BYTES
            ),
        ),
    )

    name: Label
    """Name of the prefix, unique in the pool."""
    messages: Annotated[tuple[Message, ...], Field(strict=False, min_length=1, max_length=64)]
    """The beginning of the conversations to warm."""
    tenants: Annotated[
        tuple[Tenant, ...], Field(strict=False, max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = ()
    """Tenants to cache it for; required under PerTenant isolation."""


class PrefixCacheSpec(Section):
    """The prefix cache of each worker."""

    rules: ClassVar[tuple[Rule, ...]] = (unique_names("warm_prefixes", "a prefix"),)

    enabled: bool = True
    """Whether blocks of finished requests are kept for reuse. Set it to false for a model that can have no prefix
    cache, as an encoder: vLLM gives it none, and the pool's condition EngineAsAsked says so."""
    budget_mib: MiB = 1024
    """Memory for idle cached blocks on each device, in MiB; 0 keeps none."""
    keep_share: Ratio = 0.5
    """Share of budgetMiB that is evicted last because its requests ask for it by cache_control or
    prompt_cache_retention; 0 ignores what they ask."""
    max_entries: Annotated[int, Field(ge=0, le=100_000)] = 1024
    """Turns of conversations that a worker keeps by handle; 0 keeps none."""
    warm_prefixes: Annotated[
        tuple[WarmPrefix, ...],
        Field(
            strict=False,
            max_length=64,
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    """Prompts cached on every worker before it takes traffic, and again after each restart."""


class HitObjective(Section):
    """The hit ratio the pool is meant to reach."""

    ratio: Ratio
    """Share of prompt tokens served from the cache."""
    window_seconds: Annotated[int, Field(ge=10, le=86_400)] = 600
    """Time over which the ratio is measured, in seconds."""
    min_tokens: Annotated[int, Field(ge=0, le=1_000_000_000)] = 10_000
    """Prompt tokens in that time from which on the ratio counts: the first prompts of a pool cannot be cached."""


class HitSpec(Section):
    """When a cache hit is good enough."""

    threshold: Ratio = 0.0
    """Hit ratio under which a worker refuses a request; a request's own value wins, and 0 always runs."""
    omit_zero_cached_tokens: bool = False
    """Leave the cached-token object out of usage when it is zero."""
    objective: HitObjective | None = None
    """Objective behind the condition HitRateMet. Default: none."""


class PreemptionSpec(Section):
    """What becomes of preempted requests."""

    policy: Annotated[PreemptionPolicy, Field(strict=False)] = PreemptionPolicy.HAND_BACK
    """HandBack resumes a preempted request on another worker, Recompute leaves it to its engine."""
    reject_below: Ratio = 0.5
    """A preempted request whose surviving hit ratio is lower is handed back."""
    max_hand_backs: Annotated[int, Field(ge=0, le=16)] = 2
    """Times a request is handed back before it runs to its end where it is."""


class AdmissionSpec(Section):
    """When a worker is given more work."""

    min_free_block_percent: Annotated[int, Field(ge=0, le=90)] = 5
    """Blocks that stay free on a worker, in percent of all; work that would push it below goes elsewhere."""
    max_queue_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """Longest time a request waits for a worker, in seconds."""
    max_ahead_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Prompts that a worker has yet to compute, in seconds of its work, beyond which the gateway sends it no more and
    requests wait in the queue, where tenants have their shares; three times as many for a tenant under its share; 0 is
    no bound."""
    shared_ahead_seconds: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """As maxAheadSeconds, and only while several tenants use the fleet; the lower of both holds; 0 is no bound."""
    shared_requests: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Answers to one tenant that a worker may have under way while other tenants use the fleet, beyond which its
    requests wait in the queue; three times as many for a tenant under its share; 0 is no bound."""
    cold_start_seconds: Annotated[int, Field(ge=0, le=3600)] = 0
    """Longest time a request is held while no worker is ready, as at zero workers, in seconds; 0 refuses it at once."""
    keep_alive_seconds: Annotated[int, Field(ge=0, le=MAX_KEEP_ALIVE_SECONDS)] = 0
    """Seconds after which a stream that has no first token yet is begun with a comment, and sent another each time, so
    that proxies do not cut it; from then on its status is 200 whatever comes. 0 sends none."""


class TenantShare(Section):
    """One tenant's share of the budget for idle cached blocks."""

    name: Tenant
    """Name of the tenant."""
    share: Ratio
    """Its share of prefixCache.budgetMiB."""


class CacheShareSpec(Section):
    """A tenant's share of the budget for idle cached blocks when other tenants need it too."""

    rules: ClassVar[tuple[Rule, ...]] = (unique_names("tenants", "a tenant"),)

    default: Ratio = 1.0
    """Share of every tenant that is not named; over it a tenant's own blocks are evicted first."""
    tenants: Annotated[
        tuple[TenantShare, ...],
        Field(
            strict=False,
            max_length=MAX_TENANT_SHARES,
            json_schema_extra=BY_NAME,
        ),
    ] = ()
    """Tenants with a share of their own."""


class CacheContract(Section):
    """What one tenant is promised of the pool's caches."""

    tenant: Tenant
    """Name of the tenant."""
    share: Ratio
    """Share of prefixCache.budgetMiB on each worker that is guaranteed to its idle blocks; beyond it they are evicted
    before others'."""
    retention_seconds: Annotated[int, Field(ge=0, le=2_592_000)] = 0
    """Seconds since its last use for which a block within the share is guaranteed; 0 is without end."""
    hit_objective: HitObjective | None = None
    """Hit ratio that the tenant's requests in this pool are meant to reach. Default: none."""


class TenancySpec(Section):
    """Who shares cached blocks with whom."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="contracts",
            cel="",  # the list is a map, which the API server keeps unique by itself
            message="must not name a tenant twice",
            holds=lambda tenancy: len({one.tenant for one in tenancy.contracts}) == len(tenancy.contracts),
        ),
        Rule(
            field="contracts",
            cel="self.isolation == 'PerTenant' || size(self.contracts) == 0",
            message="must be empty when isolation is Shared: there blocks are of no tenant",
            holds=lambda tenancy: tenancy.isolation == Isolation.PER_TENANT or not tenancy.contracts,
        ),
        Rule(
            field="contracts",
            cel="self.contracts.map(c, c.share).sum() <= 1.000001",
            message="must have shares that add up to at most 1",
            holds=lambda tenancy: sum(one.share for one in tenancy.contracts) <= 1 + _ROUNDING,
        ),
        Rule(
            field="contracts",
            cel="self.contracts.all(c, !self.cacheShare.tenants.exists(t, t.name == c.tenant))",
            message="must not name a tenant of cacheShare.tenants: a contract has its share",
            holds=lambda tenancy: (
                not ({one.tenant for one in tenancy.contracts} & {one.name for one in tenancy.cache_share.tenants})
            ),
        ),
        Rule(
            field="cacheShare",
            cel="self.isolation == 'PerTenant' "
            "|| (self.cacheShare.default >= 1.0 && size(self.cacheShare.tenants) == 0)",
            message="must not be set when isolation is Shared: there blocks are of no tenant",
            holds=lambda tenancy: tenancy.isolation == Isolation.PER_TENANT or tenancy.cache_share == CacheShareSpec(),
        ),
    )

    isolation: Annotated[Isolation, Field(strict=False)] = Isolation.PER_TENANT
    """PerTenant keeps tenants' blocks apart, Shared lets all tenants of the pool reuse them."""
    cache_share: CacheShareSpec = CacheShareSpec()
    """Each tenant's share of prefixCache.budgetMiB."""
    contracts: Annotated[
        tuple[CacheContract, ...],
        Field(
            strict=False,
            max_length=MAX_CONTRACTS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["tenant"]},
        ),
    ] = ()
    """What tenants are promised of the caches, whatever others need."""


Price = Annotated[float, Field(ge=0, le=MAX_PRICE)]


class PricingSpec(Section):
    """What tokens and devices of the pool cost, in a currency that all pools have in common; to a millionth of it."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="cached",
            cel="!has(self.cached) || has(self.input) && self.cached <= self.input",
            message="must not be more than input, without which it must not be set",
            holds=lambda pricing: (
                pricing.cached is None or (pricing.input is not None and pricing.cached <= pricing.input)
            ),
        ),
    )

    input: Price | None = None
    """Price of a million prompt tokens that a worker computed."""
    cached: Price | None = None
    """Price of a million prompt tokens that came from a cache. Default: that of input."""
    output: Price | None = None
    """Price of a million generated tokens."""
    gpu_hour: Price | None = None
    """Cost of one device for an hour, by which computing is valued that a cache saved or that was done twice."""


class ContinuationSpec(Section):
    """How later turns of a conversation find the blocks of earlier ones."""

    enabled: bool = True
    """Whether checkpoints of finished turns are kept; they hold no text and no token ids."""
    handles: bool = False
    """Examine how prompts are rendered, so that a handle could stand for the beginning of one; none is sent yet."""
    store_history: bool = False
    """Keep conversations for previous_response_id, encrypted, for ttlSeconds."""
    ttl_seconds: Annotated[int, Field(ge=1, le=2_592_000)] = 3600
    """Life of a checkpoint or stored conversation, in seconds."""


class RolloutSpec(Section):
    """How workers are replaced."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            field="maxSurge",
            cel="self.maxSurge + self.maxUnavailable > 0",
            message="must be at least 1 when maxUnavailable is 0",
            holds=lambda rollout: rollout.max_surge + rollout.max_unavailable > 0,
        ),
    )

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 1
    """Workers above replicas during a rollout."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 0
    """Workers below replicas during a rollout."""
    warm_timeout_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """Longest time a new worker takes to cache the warm prefixes before it takes traffic all the same, in seconds."""


class PodLabel(Section):
    """One label of pods."""

    name: Annotated[str, Field(min_length=1, max_length=317, pattern=LABEL_NAME)]
    """Name of the label, with its prefix."""
    value: Annotated[str, Field(max_length=63, pattern=LABEL_VALUE)] = ""
    """Its value."""


class InferencePoolSpec(Section):
    """The pool as an InferencePool (Gateway API Inference Extension), whose endpoint picker is the control plane."""

    rules: ClassVar[tuple[Rule, ...]] = (unique_names("labels", "a label"),)

    enabled: bool = False
    """Whether the operator makes an InferencePool of the pool's name, and deletes it where this becomes false."""
    failure_mode: Annotated[FailureMode, Field(strict=False)] = FailureMode.FAIL_CLOSE
    """While no picker answers a gateway refuses requests (FailClose), or sends them to any worker (FailOpen)."""
    labels: Annotated[tuple[PodLabel, ...], Field(strict=False, max_length=MAX_LABELS, json_schema_extra=BY_NAME)] = ()
    """Labels of the workers to select, of several pools of a fleet say; podTemplate has to give them. Default: the
    pool's own workers."""
