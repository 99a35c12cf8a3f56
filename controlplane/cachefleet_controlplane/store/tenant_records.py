"""Records of tenants, of their API keys (never a key itself) and of their usage.

Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal
from enum import StrEnum
from typing import Final

from cachefleet_controlplane.store.access_marker import ClosedReason, StoreAccess
from cachefleet_core.tenancy import TenantId

DEFAULT_PRIORITY: Final = 50
LOWEST_PRIORITY: Final = 100
DEFAULT_WEIGHT: Final = 100
MAX_WEIGHT: Final = 10_000
PICOS: Final = 10**12
"""In one unit of the currency of amounts."""
_EXACT: Final = Context(prec=80)
MAX_NUMBER: Final = 2**31 - 1
"""Upper bound of salt versions and of limits of requests, and of tokens a minute."""
MAX_TOKENS: Final = 10**15
"""Upper bound of tokens a day or month."""
MAX_SPEND: Final = 10**6
"""Upper bound of spending a day or month, in units of the currency."""
LEAST_SPEND: Final = 1e-6
"""As the least price; limits are to a millionth, too."""


BUDGET: Final = ("tokens_per_day", "tokens_per_month", "spend_per_day", "spend_per_month")
"""Limits by the calendar: of tenants, and of keys of their own."""


def picos(amount: float) -> int:
    """An amount of the currency in picos, to its millionth."""
    return round(amount * 10**6) * 10**6


def amount_text(amount: int) -> str:
    """An amount in picos as a decimal number of the currency, exact."""
    return format(Decimal(amount).scaleb(-12, context=_EXACT).normalize(_EXACT), "f")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """A tenant: the version of its salt, its priority in the queue, and its limits."""

    name: TenantId
    salt_version: int = 1
    """1 and up."""
    priority: int = DEFAULT_PRIORITY
    """0 is served first, LOWEST_PRIORITY last."""
    weight: int = DEFAULT_WEIGHT
    """Of its share among waiting tenants of its priority: 1 to MAX_WEIGHT."""
    requests_at_once: int | None = None
    tokens_per_minute: int | None = None
    """Computed prompt tokens and completion tokens."""
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    """As of a minute, but of a day of UTC."""
    tokens_per_month: int | None = None
    spend_per_day: int | None = None
    """What may be charged at its pools' prices in a day of UTC, in picos of their currency."""
    spend_per_month: int | None = None
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
class KeyRecord:
    """An API key: its keyed hash, and its first characters to recognise it by."""

    id: str
    tenant: TenantId
    hash: str
    hint: str
    created: float
    expires: float | None = None
    revoked: float | None = None
    models: tuple[str, ...] = ()
    """Names of the models that it may use, and patterns with ``*``; all models where there is none."""
    tokens_per_day: int | None = None
    """What it may use of its tenant's, as all its limits."""
    tokens_per_month: int | None = None
    spend_per_day: int | None = None
    """In picos."""
    spend_per_month: int | None = None

    @property
    def budget(self) -> dict[str, int | None]:
        """Its own limits by the calendar."""
        return {name: getattr(self, name) for name in BUDGET}

    @property
    def budget_name(self) -> str:
        """By which its own use is counted; "" where it has no limit of its own. No tenant has such a name."""
        return f"{self.tenant}/{self.id}" if any(most is not None for most in self.budget.values()) else ""

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
    """What was used in some time: computed prompt tokens and completion tokens, and what they cost, in picos."""

    tokens: int = 0
    charged: int = 0

    def add(self, used: UsageRecord | Totals) -> None:
        """Add what was used."""
        self.tokens += used.tokens
        self.charged += used.charged


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
    def tokens(self) -> int:
        """Computed prompt tokens and completion tokens."""
        return self.prompt_tokens - self.cached_tokens + self.completion_tokens
