"""Records of tenants, of their API keys (never a key itself) and of their usage.

Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.store.access_marker import ClosedReason, StoreAccess
from cachefleet_core.fleet_status.tenant_limits import BUDGET
from cachefleet_core.tenancy import TenantId

DEFAULT_PRIORITY: Final = 50
LOWEST_PRIORITY: Final = 100
DEFAULT_WEIGHT: Final = 100
MAX_WEIGHT: Final = 10_000
PICOS: Final = 10**12
"""In one unit of the currency of amounts."""
_EXACT: Final = Context(prec=80)


def picos(amount: float) -> int:
    """An amount of the currency in picos, to its millionth."""
    return round(amount * 10**6) * 10**6


def amount_text(amount: int) -> str:
    """An amount in picos as a decimal number of the currency, exact."""
    return format(Decimal(amount).scaleb(-12, context=_EXACT).normalize(_EXACT), "f")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetRecord:
    """Limits by the calendar, those of BUDGET: a day or month of UTC. Money is in picos."""

    requests_per_day: int | None = None
    """Sent to a worker."""
    requests_per_month: int | None = None
    tokens_per_day: int | None = None
    """Computed prompt tokens and completion tokens."""
    tokens_per_month: int | None = None
    uncached_tokens_per_day: int | None = None
    """Computed prompt tokens."""
    uncached_tokens_per_month: int | None = None
    cached_tokens_per_day: int | None = None
    """Prompt tokens that came from a cache."""
    cached_tokens_per_month: int | None = None
    output_tokens_per_day: int | None = None
    """Completion tokens."""
    output_tokens_per_month: int | None = None
    spend_per_day: int | None = None
    """What may be charged at its pools' prices."""
    spend_per_month: int | None = None

    @property
    def budget(self) -> dict[str, int | None]:
        """Its limits by the calendar."""
        return {name: getattr(self, name) for name in BUDGET}

    @property
    def has_budget(self) -> bool:
        """Whether it has any limit by the calendar."""
        return any(getattr(self, name) is not None for name in BUDGET)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord(BudgetRecord):
    """A tenant: the version of its salt, its priority in the queue, and its limits."""

    name: TenantId
    salt_version: int = 1
    """1 and up."""
    priority: int = DEFAULT_PRIORITY
    """0 is served first, LOWEST_PRIORITY last."""
    weight: int = DEFAULT_WEIGHT
    """Of its share among waiting tenants of its priority: 1 to MAX_WEIGHT."""
    requests_at_once: int | None = None
    requests_per_minute: int | None = None
    """Let in."""
    tokens_per_minute: int | None = None
    """As of a day, as all limits of a minute."""
    uncached_tokens_per_minute: int | None = None
    cached_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    spend_per_minute: int | None = None
    disabled: bool = False
    trusted: bool = False
    """Its requests may tell engines their priority, ids, sessions and forwarded addresses."""
    created: float = 0.0


class KeyState(StrEnum):
    """Whether a key is taken now."""

    ACTIVE = "active"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord(BudgetRecord):
    """An API key: its keyed hash, its first characters to recognise it by, and limits of its own."""

    id: str
    tenant: TenantId
    hash: str
    hint: str
    created: float
    expires: float | None = None
    revoked: float | None = None
    models: tuple[str, ...] = ()
    """Names of the models that it may use, and patterns with ``*``; all models where there is none."""

    @property
    def name(self) -> str:
        """By which its own use is counted; no tenant has such a name."""
        return f"{self.tenant}/{self.id}"

    @property
    def budget_name(self) -> str:
        """Its name; "" where it has no limit of its own."""
        return self.name if self.has_budget else ""

    def state(self, now: float) -> KeyState:
        """Whether it is accepted at ``now``."""
        if self.revoked is not None:
            return KeyState.REVOKED
        return KeyState.EXPIRED if self.expires is not None and now >= self.expires else KeyState.ACTIVE


@dataclass(frozen=True, slots=True)
class Tenancy:
    """All tenants and keys at one revision: ``revision`` grows with each change, ``store`` names the database."""

    store: str
    revision: int
    tenants: tuple[TenantRecord, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    access: StoreAccess = StoreAccess.UNSAID
    closed: ClosedReason = ClosedReason.NO
    """Why nobody is served without a key when there is none."""


@dataclass(slots=True)
class Totals:
    """What was used in some time, by the units of limits; money in picos."""

    requests: int = 0
    uncached_tokens: int = 0
    """Computed prompt tokens."""
    cached_tokens: int = 0
    output_tokens: int = 0
    """Completion tokens."""
    spend: int = 0

    @property
    def tokens(self) -> int:
        """Computed prompt tokens and completion tokens."""
        return self.uncached_tokens + self.output_tokens

    def add(self, used: Totals) -> None:
        """Add what was used."""
        self.requests += used.requests
        self.uncached_tokens += used.uncached_tokens
        self.cached_tokens += used.cached_tokens
        self.output_tokens += used.output_tokens
        self.spend += used.spend


@dataclass(slots=True, kw_only=True, unsafe_hash=True)  # frozen, it would cost several times as much to make
class UsageRecord:
    """What one tenant used of one model in the hour that begins at ``hour``."""

    hour: int
    tenant: TenantId
    model: str
    requests: int = 0
    prompt_tokens: int = 0
    """Cached ones included."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    recomputed_tokens: int = 0
    """Prompt tokens that were computed, though some worker had computed them before."""
    charged: int = 0
    """At the prices of its pools, in picos of their currency, as all amounts."""
    saved: int = 0
    """What it would have been charged more, had nothing come from a cache."""
    wasted: int = 0
    """What it was charged more for recomputed tokens than if they had come from a cache."""
    compute_saved: int = 0
    """Cost of the devices' time that cached tokens would have taken."""
    compute_wasted: int = 0
    """Cost of the devices' time that recomputed tokens took."""
    key: str = ""
    """Whose budget it counts against, too, by ``KeyRecord.budget_name``."""

    @property
    def totals(self) -> Totals:
        """What limits count of it."""
        uncached = self.prompt_tokens - self.cached_tokens
        return Totals(self.requests, uncached, self.cached_tokens, self.completion_tokens, self.charged)
