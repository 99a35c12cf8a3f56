"""The tables of tenants' files, as SQLModel classes; see ``tables``."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, LargeBinary, String
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


class FilePartRow(SQLModel, table=True):
    """A piece of a file's content, encrypted."""

    __tablename__ = "file_parts"

    file: str = Field(sa_column=Column(String(64), ForeignKey("files.id", ondelete="CASCADE"), primary_key=True))
    number: int = Field(primary_key=True)
    sealed: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
