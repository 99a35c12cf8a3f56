"""The tables of conversations, responses and certificates, as SQLModel classes; see ``tables``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Float, ForeignKey, LargeBinary, String, UniqueConstraint
from sqlmodel import Field, SQLModel


class ConversationRow(SQLModel, table=True):
    """A conversation and its head: the checkpoint that the next turn has to continue."""

    __tablename__ = "conversations"
    __table_args__ = (UniqueConstraint("tenant", "model", "name", name="uq_conversations_name"),)

    id: str = Field(max_length=64, primary_key=True)
    tenant: str = Field(max_length=128)
    model: str = Field(max_length=512)
    name: str = Field(max_length=64)
    head: str = Field(max_length=64)
    seq: int
    state: str = Field(max_length=16)
    expires: float = Field(sa_column=Column(Float(53), nullable=False, index=True))


class CheckpointRow(SQLModel, table=True):
    """One Checkpoint."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("conversation", "seq", name="uq_checkpoints_seq"),)

    id: str = Field(max_length=64, primary_key=True)
    conversation: str = Field(
        sa_column=Column(String(64), ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False)
    )
    seq: int
    parent: str | None = Field(default=None, max_length=64)
    response: str | None = Field(default=None, max_length=128, index=True)
    status: str = Field(max_length=16)
    prefix_hash: str = Field(max_length=80)
    prefix_tokens: int
    ends_at_boundary: bool
    prompt_tokens: int
    keys: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    contract: str = Field(max_length=80)
    block_size: int
    salt_version: int | None = None
    fingerprints: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    worker: str = Field(max_length=1024)
    epoch: str = Field(max_length=256)
    handle: str | None = Field(default=None, max_length=256)
    """Always null: a handle is its worker's, and ends with it. Left for replicas of an earlier version."""
    created: float = Field(sa_column=Column(Float(53), nullable=False))
    expires: float = Field(sa_column=Column(Float(53), nullable=False))


class ResponseRow(SQLModel, table=True):
    """One SealedResponse: a conversation up to a response, encrypted."""

    __tablename__ = "responses"

    tenant: str = Field(max_length=128, primary_key=True)
    id: str = Field(max_length=128, primary_key=True)
    model: str = Field(max_length=512)
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    created: float = Field(sa_column=Column(Float(53), nullable=False))
    expires: float = Field(sa_column=Column(Float(53), nullable=False, index=True))


class CertificateRow(SQLModel, table=True):
    """One Certificate."""

    __tablename__ = "certificates"

    profile: str = Field(max_length=80, primary_key=True)
    contract: str = Field(max_length=80, primary_key=True)
    model: str = Field(max_length=512)
    certified: bool
    reason: str = Field(max_length=256)
    at: float = Field(sa_column=Column(Float(53), nullable=False))
    version: int
    counts: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
