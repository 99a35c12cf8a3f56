"""The tables, as SQLModel classes. A change here needs a migration; a test compares the two."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Float, Index, Integer
from sqlmodel import Field, SQLModel

# SQLite numbers rows by itself only where the key is spelt INTEGER.
_Sequence = BigInteger().with_variant(Integer, "sqlite")


class DecisionRow(SQLModel, table=True):
    """One DecisionRecord; ``seq`` grows with each save and gives the ring its order."""

    __tablename__ = "decisions"
    __table_args__ = (Index("ix_decisions_model_seq", "model", "seq"),)

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
    legs: list[dict[str, Any]] = Field(sa_column=Column(JSON, nullable=False))
    candidates: list[dict[str, Any]] = Field(sa_column=Column(JSON, nullable=False))
    candidates_left_out: int = Field(sa_column=Column(Integer, nullable=False, server_default="0"))
