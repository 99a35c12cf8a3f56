"""Records of the audit log: who asked the admin API to change what, when, from where, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MAX_TEXT: Final = 512
"""Characters of a text that are kept."""
FORBIDDEN: Final = 403
READING_VERBS: Final = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """One request that was not a mere reading. No key, token, prompt or other secret has a field here."""

    id: str
    at: float
    """Unix time in seconds."""
    username: str
    """As Kubernetes knows the token's user; ADMIN_TOKEN for the token of one machine."""
    address: str
    """Where the request came from: the last hop, which may be a proxy."""
    method: str
    path: str
    """Below the API's root, without its query."""
    verb: str
    resource: str
    """With ``verb`` the right that it took."""
    status: int
    made: str = ""
    """The path of what was made; "" where nothing was."""
    change: Mapping[str, Any] | None = None
    """What was asked for, where the request succeeded and what it may hold is no secret."""

    @property
    def harmless(self) -> bool:
        """Whether its user could change nothing by it: anybody with a token can make any number of these."""
        return self.status == FORBIDDEN or self.verb in READING_VERBS


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Conditions that all hold; None is no condition. Times in Unix seconds: from ``since`` on, before ``until``."""

    username: str | None = None
    resource: str | None = None
    since: float | None = None
    until: float | None = None

    def matches(self, record: AuditRecord) -> bool:
        """Whether all conditions hold for a record."""
        by = self.username in {None, record.username} and self.resource in {None, record.resource}
        return by and (self.since is None or record.at >= self.since) and (self.until is None or record.at < self.until)


ALL: Final = AuditFilter()
"""All records."""
