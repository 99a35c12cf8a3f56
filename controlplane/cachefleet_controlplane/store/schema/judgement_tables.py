"""The tables of what was judged by the minute, and of pools' changes of size. A change needs a migration."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer
from sqlmodel import Field, SQLModel


class JudgedMinutesRow(SQLModel, table=True):
    """One HourPart of what ``kind`` judges of a pool and, for contracts, a tenant."""

    __tablename__ = "judged_minutes"
    __table_args__ = (Index("ix_judged_minutes_hour", "hour"), Index("ix_judged_minutes_written", "written"))

    kind: str = Field(max_length=16, primary_key=True)
    pool: str = Field(max_length=512, primary_key=True)
    tenant: str = Field(max_length=128, primary_key=True)
    hour: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    reason: str = Field(max_length=32, primary_key=True)
    bits: int = Field(sa_column=Column(BigInteger, nullable=False))
    evicted: int = Field(sa_column=Column(BigInteger, nullable=False))
    written: int = Field(sa_column=Column(BigInteger, nullable=False, server_default="0"))
    """When the database took it last, in Unix seconds by its own clock."""


class SizeChangeRow(SQLModel, table=True):
    """One change of a pool's size, as JSON, by its time in Unix seconds."""

    __tablename__ = "size_changes"
    __table_args__ = (Index("ix_size_changes_at", "at"),)

    pool: str = Field(max_length=512, primary_key=True)
    at: float = Field(sa_column=Column(Float(53), primary_key=True))
    change: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
