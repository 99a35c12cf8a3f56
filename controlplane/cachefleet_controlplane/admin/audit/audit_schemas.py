"""Entries of the audit log as the API shows them, and what may be asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints

from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.store.audit_records import AuditFilter, AuditRecord

Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]


class AuditEntry(Schema):
    """One request that was not a mere reading, refused ones among them."""

    id: str
    at: datetime
    username: str = Field(examples=["system:serviceaccount:serving:sre"])
    """As Kubernetes knows the token's user; on one machine "admin token"."""
    address: str
    """Where the request came from: the last hop, which may be a proxy."""
    method: str
    path: str
    verb: str
    resource: str
    """With ``verb`` the right that it took."""
    status: int
    made: str
    """The path of what was made; empty where nothing was."""
    change: Mapping[str, Any] | None
    """What was asked for, where it was done and may be told."""

    @classmethod
    def of(cls, record: AuditRecord) -> AuditEntry:
        """The entry of a record."""
        return cls.model_validate(asdict(record) | {"at": datetime.fromtimestamp(record.at, UTC)})


class AuditList(Schema):
    """Entries, the last first."""

    items: tuple[AuditEntry, ...]
    next: str | None
    """To be given as ``before`` for those that are older; null where there are none."""
    waiting: int
    """Entries of this replica that are not stored yet."""
    store_problem: str | None
    """Why they are not, or why only those are shown; null while the store works."""


class AuditQuery(Schema):
    """Conditions on entries; all that are given must hold."""

    model_config = ConfigDict(extra="forbid")

    username: Text | None = None
    resource: Text | None = Field(None, description="Such as `tenants/keys`.")
    since: AwareDatetime | None = Field(None, description="Made then or later; with a time zone.")
    until: AwareDatetime | None = Field(None, description="Made before.")

    def wanted(self) -> AuditFilter:
        """The filter of these conditions."""
        since, until = (None if at is None else at.timestamp() for at in (self.since, self.until))
        return AuditFilter(username=self.username, resource=self.resource, since=since, until=until)


class AuditPageQuery(AuditQuery):
    """Conditions on entries, and which page of them."""

    before: Text | None = Field(None, description="`next` of the page before: goes on with what is older.")
    limit: int = Field(50, ge=1, le=500, description="How many at most.")


class AuditExportQuery(AuditQuery):
    """Conditions on entries, and how many."""

    limit: int = Field(10_000_000, ge=1, le=10_000_000, description="How many at most; default: all.")
