"""The tables of decisions, tenants and usage, as SQLModel classes. A change needs a migration; a test compares them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, String, Text, false
from sqlmodel import Field, SQLModel

# SQLite assigns row numbers only where the key is declared INTEGER.
_Sequence = BigInteger().with_variant(Integer, "sqlite")


class DecisionRow(SQLModel, table=True):
    """One DecisionRecord; ``seq`` grows with each save and gives the ring its order."""

    __tablename__ = "decisions"
    __table_args__ = (
        Index("ix_decisions_model_seq", "model", "seq"),
        Index("ix_decisions_tenant_seq", "tenant", "seq"),
        Index("ix_decisions_request_id", "request_id"),
        Index("ix_decisions_at", "at"),
    )

    seq: int | None = Field(default=None, sa_column=Column(_Sequence, primary_key=True, autoincrement=True))
    id: str = Field(max_length=64, unique=True, index=True)
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    model: str = Field(max_length=256)
    pool: str = Field(max_length=512)
    endpoint: str = Field(max_length=64)
    policy: str = Field(max_length=32)
    verdict: str = Field(max_length=32)
    reason: str = Field(max_length=256)
    worker: str = Field(max_length=1024)
    knowledge: str = Field(max_length=32)
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    ttft_seconds: float | None = None
    status: int
    attempts: list[dict[str, Any]] = Field(sa_column=Column("legs", JSON, key="attempts", nullable=False))
    keyed_candidates: list[dict[str, Any]] = Field(
        sa_column=Column("candidates", JSON, key="keyed_candidates", nullable=False)
    )
    """Candidates as objects, where ``candidates`` is NULL: in rows of releases before 0013."""
    candidates_left_out: int = Field(sa_column=Column(Integer, nullable=False, server_default="0"))
    queued_seconds: float | None = None
    tenant: str = Field(sa_column=Column(String(128), nullable=False, server_default=""))
    isolation: str = Field(sa_column=Column(String(32), nullable=False, server_default=""))
    salt_version: int | None = None
    rung: str = Field(sa_column=Column(String(32), nullable=False, server_default=""))
    render_failure: str | None = Field(default=None, max_length=64)
    shortfall: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    lost: list[dict[str, Any]] = Field(sa_column=Column(JSON, nullable=False, server_default="[]"))
    continuation: str | None = Field(default=None, max_length=64)
    request_id: str | None = Field(default=None, max_length=128)
    ended_by: str | None = Field(default=None, max_length=16)
    candidates: list[list[Any]] | None = Field(
        default=None, sa_column=Column("scores", JSON(none_as_null=True), key="candidates")
    )


class TenancyRow(SQLModel, table=True):
    """The one row that says which store this is, and how often tenants or keys were changed in it."""

    __tablename__ = "tenancy"

    id: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    store: str = Field(max_length=32)
    revision: int = Field(sa_column=Column(BigInteger, nullable=False))
    access: str = Field(sa_column=Column(String(16), nullable=False, server_default=""))


class BudgetColumns(SQLModel):
    """Limits by the calendar, as of a BudgetRecord."""

    requests_per_day: int | None = Field(default=None, sa_type=BigInteger)
    requests_per_month: int | None = Field(default=None, sa_type=BigInteger)
    tokens_per_day: int | None = Field(default=None, sa_type=BigInteger)
    tokens_per_month: int | None = Field(default=None, sa_type=BigInteger)
    uncached_tokens_per_day: int | None = Field(default=None, sa_type=BigInteger)
    uncached_tokens_per_month: int | None = Field(default=None, sa_type=BigInteger)
    cached_tokens_per_day: int | None = Field(default=None, sa_type=BigInteger)
    cached_tokens_per_month: int | None = Field(default=None, sa_type=BigInteger)
    output_tokens_per_day: int | None = Field(default=None, sa_type=BigInteger)
    output_tokens_per_month: int | None = Field(default=None, sa_type=BigInteger)
    spend_per_day: int | None = Field(default=None, sa_type=BigInteger)
    spend_per_month: int | None = Field(default=None, sa_type=BigInteger)


class TenantRow(BudgetColumns, table=True):
    """One TenantRecord."""

    __tablename__ = "tenants"

    name: str = Field(max_length=128, primary_key=True)
    salt_version: int
    priority: int
    weight: int = Field(sa_column=Column(Integer, nullable=False, server_default="100"))
    requests_at_once: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    uncached_tokens_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    cached_tokens_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    output_tokens_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    spend_per_minute: int | None = Field(default=None, sa_type=BigInteger)
    disabled: bool
    trusted: bool = Field(sa_column=Column(Boolean, nullable=False, server_default=false()))
    created: float = Field(sa_column=Column(Float(53), nullable=False))


class LimitBucketRow(SQLModel, table=True):
    """The token bucket of one limit of a ``tenant`` or key, which replicas share: what is ``free`` of it at a time in
    Unix seconds, and as JSON what each replica holds.
    """

    __tablename__ = "limit_buckets"

    tenant: str = Field(max_length=161, primary_key=True)
    limited: str = Field(max_length=32, primary_key=True)
    most: int = Field(sa_column=Column(BigInteger, nullable=False))
    free: float = Field(sa_column=Column(Float(53), nullable=False))
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    held: str = Field(sa_column=Column(Text, nullable=False))


class ReplicaRow(SQLModel, table=True):
    """A replica that shares limits, and its last sign of life in Unix seconds."""

    __tablename__ = "replicas"

    replica: str = Field(max_length=32, primary_key=True)
    at: float = Field(sa_column=Column(Float(53), nullable=False))


class KeyRow(BudgetColumns, table=True):
    """One KeyRecord."""

    __tablename__ = "api_keys"

    id: str = Field(max_length=32, primary_key=True)
    tenant: str = Field(
        sa_column=Column(String(128), ForeignKey("tenants.name", ondelete="CASCADE"), nullable=False, index=True)
    )
    hash: str = Field(max_length=64, unique=True, index=True)
    hint: str = Field(max_length=16)
    created: float = Field(sa_column=Column(Float(53), nullable=False))
    expires: float | None = Field(default=None, sa_column=Column(Float(53)))
    revoked: float | None = Field(default=None, sa_column=Column(Float(53)))
    models: list[str] = Field(sa_column=Column(JSON, nullable=False, server_default="[]"))


class KeyUsageRow(SQLModel, table=True):
    """What was used in an hour with a key that has limits of its own; the sums of ``usage`` have it, too.

    ``tokens`` are those computed of prompts and those generated.
    """

    __tablename__ = "key_usage"

    hour: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    key: str = Field(max_length=161, primary_key=True)
    tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    charged: int = Field(sa_column=Column(BigInteger, nullable=False))
    requests: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    cached_tokens: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    output_tokens: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))


class UsageRow(SQLModel, table=True):
    """One UsageRecord; a tenant that was deleted keeps what it used."""

    __tablename__ = "usage"

    hour: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    tenant: str = Field(max_length=128, primary_key=True)
    model: str = Field(max_length=256, primary_key=True)
    requests: int = Field(sa_column=Column(BigInteger, nullable=False))
    prompt_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    cached_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    completion_tokens: int = Field(sa_column=Column(BigInteger, nullable=False))
    recomputed_tokens: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    charged: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    saved: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    wasted: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    compute_saved: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    compute_wasted: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
