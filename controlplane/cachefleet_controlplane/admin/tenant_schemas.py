"""Requests and answers of the admin API about tenants, their keys and their usage."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AwareDatetime, ConfigDict, Field

from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.store.tenant_records import (
    DEFAULT_PRIORITY,
    DEFAULT_WEIGHT,
    LOWEST_PRIORITY,
    MAX_WEIGHT,
    KeyState,
)
from cachefleet_controlplane.tenants.allowed_models import MAX_MODELS, MAX_NAME
from cachefleet_core.fleet_status.tenant_limits import LEAST_SPEND, MAX_NUMBER, MAX_SPEND, MAX_TOKENS
from cachefleet_core.pool.section import TENANT

MAX_GRACE_SECONDS: Final = 30 * 86_400

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=TENANT, examples=["acme"])]
Priority = Annotated[int, Field(strict=True, ge=0, le=LOWEST_PRIORITY, examples=[10])]
Weight = Annotated[int, Field(strict=True, ge=1, le=MAX_WEIGHT, examples=[200])]
Number = Annotated[int, Field(strict=True, ge=1, le=MAX_NUMBER, examples=[100])]
Tokens = Annotated[int, Field(strict=True, ge=1, le=MAX_TOKENS, examples=[5_000_000])]
Spend = Annotated[float, Field(strict=True, ge=LEAST_SPEND, le=MAX_SPEND, allow_inf_nan=False, examples=[25.5])]
"""In the currency of the pools' prices, to its millionth."""
ModelPattern = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=r"^[!-~]+$", examples=["qwen3-*"])]
Amount = Annotated[str, Field(pattern=r"^\d+(\.\d+)?$", examples=["12.0345"])]
"""A decimal number, exact."""
Flag = Annotated[bool, Field(strict=True)]

_TAKEN: Final = ConfigDict(extra="forbid")
_SHOWN: Final = ConfigDict(json_schema_serialization_defaults_required=True)
"""An answer has all of its fields."""


class Budget(Schema):
    """TenantLimits of a day or month of UTC; null is no limit."""

    # Factories, so that the schema names no default: in a change a field left out is not changed.
    requests_per_day: Tokens | None = Field(default_factory=lambda: None)
    """Requests sent to a worker."""
    requests_per_month: Tokens | None = Field(default_factory=lambda: None)
    tokens_per_day: Tokens | None = Field(default_factory=lambda: None)
    """Prompt tokens computed and tokens generated."""
    tokens_per_month: Tokens | None = Field(default_factory=lambda: None)
    uncached_tokens_per_day: Tokens | None = Field(default_factory=lambda: None)
    """Prompt tokens computed."""
    uncached_tokens_per_month: Tokens | None = Field(default_factory=lambda: None)
    cached_tokens_per_day: Tokens | None = Field(default_factory=lambda: None)
    """Prompt tokens that came from a cache."""
    cached_tokens_per_month: Tokens | None = Field(default_factory=lambda: None)
    output_tokens_per_day: Tokens | None = Field(default_factory=lambda: None)
    """Tokens generated."""
    output_tokens_per_month: Tokens | None = Field(default_factory=lambda: None)
    spend_per_day: Spend | None = Field(default_factory=lambda: None)
    """What may be charged at the pools' prices, in their currency."""
    spend_per_month: Spend | None = Field(default_factory=lambda: None)


class TenantLimits(Budget):
    """TenantLimits of a tenant; null is no limit."""

    requests_at_once: Number | None = Field(default_factory=lambda: None)
    """On each replica of the control plane."""
    requests_per_minute: Number | None = Field(default_factory=lambda: None)
    """Requests let in."""
    tokens_per_minute: Number | None = Field(default_factory=lambda: None)
    """As of a day, as all limits of a minute."""
    uncached_tokens_per_minute: Number | None = Field(default_factory=lambda: None)
    cached_tokens_per_minute: Number | None = Field(default_factory=lambda: None)
    output_tokens_per_minute: Number | None = Field(default_factory=lambda: None)
    spend_per_minute: Spend | None = Field(default_factory=lambda: None)


class NewTenant(TenantLimits):
    """A tenant to be made."""

    model_config = _TAKEN | ConfigDict(json_schema_extra={"examples": [{"name": "acme", "tokensPerMinute": 200_000}]})

    name: Name
    salt_version: Number = 1
    priority: Priority = DEFAULT_PRIORITY
    """0 gets its turn first, 100 last."""
    weight: Weight = DEFAULT_WEIGHT
    """Of its share of computed tokens while tenants of its priority wait."""
    disabled: Flag = False
    trusted: Flag = False
    """Its requests may tell engines their priority, ids, sessions and forwarded addresses."""


class TenantChange(TenantLimits):
    """What shall be different; what is left out stays. A limit that is null is taken away."""

    model_config = _TAKEN | ConfigDict(json_schema_extra={"examples": [{"priority": 10, "requestsAtOnce": None}]})

    salt_version: Number = Field(default_factory=lambda: 1)
    """A new one cuts the tenant off from all that is cached for it."""
    priority: Priority = Field(default_factory=lambda: DEFAULT_PRIORITY)
    weight: Weight = Field(default_factory=lambda: DEFAULT_WEIGHT)
    disabled: Flag = Field(default_factory=lambda: False)
    trusted: Flag = Field(default_factory=lambda: False)


class Tenant(TenantLimits):
    """A tenant."""

    model_config = _SHOWN

    name: str = Field(examples=["acme"])
    salt_version: int
    priority: int
    weight: int
    disabled: bool
    trusted: bool
    created: datetime


class TenantList(Schema):
    """Tenants by name."""

    items: tuple[Tenant, ...]
    next: str | None = None
    """To be given as ``after`` for those that follow; null where there are none."""


class AccessReason(StrEnum):
    """Why requests without a key are served or not."""

    OPEN = "open"
    KEYS = "keys"
    """There are API keys."""
    REQUIRED = "required"
    """CACHEFLEET_API_KEYS is required."""
    KEYED = "keyed"
    """Keys were made here and deleted since."""
    LOST = "lost"
    """The store, which may have had keys, was lost."""
    UNREAD = "unread"
    """The store could not be read since the start."""


class Access(Schema):
    """Whether requests without an API key are served."""

    open: bool
    reason: AccessReason


class NewKey(Budget):
    """A key to be made; what limits it has are its own, within its tenant's."""

    model_config = _TAKEN | ConfigDict(json_schema_extra={"examples": [{"expires": "2027-01-01T00:00:00Z"}]})

    expires: AwareDatetime | None = None
    """With its time zone; null is never."""
    models: Annotated[tuple[ModelPattern, ...], Field(max_length=MAX_MODELS)] = ()
    """The models that it may use, by name, or pattern with `*`; empty: all."""


class Rotation(NewKey):
    """A key to be made, and when the tenant's other keys end. Where no limit is named it has those of the tenant's
    newest key.
    """

    model_config = _TAKEN | ConfigDict(json_schema_extra={"examples": [{"graceSeconds": 3600}]})

    models: Annotated[tuple[ModelPattern, ...] | None, Field(max_length=MAX_MODELS)] = None  # type: ignore[assignment]
    """As for a new key; null: those of the tenant's newest key."""
    grace_seconds: Annotated[float, Field(strict=True, ge=0, le=MAX_GRACE_SECONDS)] = 0.0
    """How long the other keys are taken beside the new one."""


class Key(Budget):
    """A key as far as it is remembered."""

    model_config = _SHOWN

    id: str = Field(examples=["5f2c9a10b3d4e6f7"])
    tenant: str = Field(examples=["acme"])
    hint: str = Field(examples=["cf-Zm9vYm"])
    """Its first characters."""
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    models: tuple[str, ...] = Field(examples=[["qwen3-*"]])
    """The models that it may use; all where there is none."""
    state: KeyState


class CreatedKey(Key):
    """A key that was just made, with the key itself: it is told this once."""

    key: str = Field(examples=["cf-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmE"])


class RevokedKey(Key):
    """A key that was just revoked, and refused by this replica from now on."""

    stored: bool
    """False: the store fails, and is told once it can; until then other replicas take the key."""


class KeyList(Schema):
    """A tenant's keys, oldest first."""

    items: tuple[Key, ...]


class UsageBy(StrEnum):
    """What usage is summed up over."""

    HOUR = "hour"
    DAY = "day"
    """Of UTC."""


class Usage(Schema):
    """What one tenant used of one model in one hour or day; amounts are in the currency of the pools' prices."""

    hour: datetime
    """The beginning of the hour, or of the day."""
    tenant: str = Field(examples=["acme"])
    model: str
    requests: int
    """Sent to a worker."""
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt tokens, those that came from a cache."""
    computed_tokens: int
    """The other prompt tokens."""
    completion_tokens: int
    recomputed_tokens: int
    """Of the computed tokens, those that some worker had computed before."""
    charged: Amount
    """At the prices in force when the requests ended; 0 where a pool has none, as all amounts."""
    saved: Amount
    """What it would have been charged more, had nothing come from a cache."""
    wasted: Amount
    """What it was charged more for recomputed tokens than if they had come from a cache."""
    compute_saved: Amount
    """Cost of the devices' time that cached tokens would have taken, at the speed that workers measured."""
    compute_wasted: Amount
    """Cost of the devices' time that recomputed tokens took."""


class UsageList(Schema):
    """Usage by hour, tenant and model."""

    items: tuple[Usage, ...]
    truncated: bool
    """There is more than was asked for at most."""
