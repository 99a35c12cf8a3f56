"""The table of the audit log, as a SQLModel class. A change needs a migration; a test compares them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer
from sqlmodel import Field, SQLModel


class AuditRow(SQLModel, table=True):
    """One AuditRecord; ``seq`` grows with each."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_at", "at"),)

    seq: int | None = Field(
        default=None,
        sa_column=Column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    )
    id: str = Field(max_length=64, unique=True, index=True)
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    username: str = Field(max_length=512)
    address: str = Field(max_length=64)
    method: str = Field(max_length=16)
    path: str = Field(max_length=512)
    verb: str = Field(max_length=32)
    resource: str = Field(max_length=128)
    status: int
    made: str = Field(max_length=512)
    change: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
