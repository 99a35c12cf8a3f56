"""The tables of tenants' files and batches, as SQLModel classes; see ``tables``."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Float, ForeignKey, Index, LargeBinary, String, Text
from sqlmodel import Field, SQLModel


class FileRow(SQLModel, table=True):
    """One KeptFile."""

    __tablename__ = "files"
    __table_args__ = (Index("ix_files_tenant_created", "tenant", "created"),)

    id: str = Field(max_length=64, primary_key=True)
    tenant: str = Field(max_length=128)
    name: str = Field(max_length=256)
    purpose: str = Field(max_length=32)
    bytes: int = Field(sa_column=Column(BigInteger, nullable=False))
    status: str = Field(max_length=16)
    created: float = Field(sa_column=Column(Float(53), nullable=False))
    expires: float = Field(sa_column=Column(Float(53), nullable=False, index=True))
    place: str = Field(sa_column=Column(String(16), nullable=False, server_default="database"))
    """Where its content is."""
    storage: str = Field(sa_column=Column(Text, nullable=False, server_default=""))
    """URL of the object storage that has it."""


class FilePartRow(SQLModel, table=True):
    """A piece of a file's content, encrypted."""

    __tablename__ = "file_parts"

    file: str = Field(sa_column=Column(String(64), ForeignKey("files.id", ondelete="CASCADE"), primary_key=True))
    number: int = Field(primary_key=True)
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))


class BatchRow(SQLModel, table=True):
    """One Batch, and the lease of who runs it."""

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_tenant_created", "tenant", "created"),)

    id: str = Field(max_length=64, primary_key=True)
    tenant: str = Field(max_length=128)
    endpoint: str = Field(max_length=64)
    input_file: str = Field(max_length=64)
    window: str = Field(max_length=16)
    given: dict[str, str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    """Its metadata."""
    models: list[str] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True)))
    key: str | None = Field(default=None, max_length=64)
    """Id of the API key whose budget its requests count against, too."""
    model: str = Field(max_length=512)
    status: str = Field(sa_column=Column(String(16), nullable=False, index=True))
    created: float = Field(sa_column=Column(Float(53), nullable=False))
    expires: float = Field(sa_column=Column(Float(53), nullable=False))
    deleted: float = Field(sa_column=Column(Float(53), nullable=False, index=True))
    times: dict[str, float] = Field(sa_column=Column(JSON, nullable=False))
    total: int
    completed: int
    failed: int
    errors: list[dict[str, Any]] = Field(sa_column=Column(JSON, nullable=False))
    output_file: str | None = Field(default=None, max_length=64)
    error_file: str | None = Field(default=None, max_length=64)
    holder: str | None = Field(default=None, max_length=64)
    """Who runs it."""
    held_until: float = Field(sa_column=Column(Float(53), nullable=False))


class BatchLineRow(SQLModel, table=True):
    """One line of a batch that is not over; what it was answered, encrypted."""

    __tablename__ = "batch_lines"
    __table_args__ = (Index("ix_batch_lines_place", "batch", "place"),)

    batch: str = Field(sa_column=Column(String(64), ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True))
    number: int = Field(primary_key=True)
    place: int
    """When it runs: after those of smaller places."""
    start: int = Field(sa_column=Column(BigInteger, nullable=False))
    size: int
    state: int
    result: bytes | None = Field(default=None, sa_column=Column(LargeBinary))
