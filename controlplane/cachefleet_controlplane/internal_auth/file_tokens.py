"""Authorization without Kubernetes, for one machine: tokens derived from the fleet key, or in files of mode 0600."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path
from typing import Final

from cachefleet_controlplane.internal_auth.authorizer import MAX_TOKEN, Asked, Authorization, Reporter
from cachefleet_controlplane.metrics import Metrics
from cachefleet_core.report_frames import Hello
from cachefleet_core.tenancy import FleetKey

logger = logging.getLogger(__name__)

ADMIN_USER: Final = "admin token"
"""In place of a user's name, which a token in a file has not."""
_NOBODY: Final = b""
"""Equals no digest."""


class TokenFile:
    """One token in a file that is read again when it changes; a missing or empty file allows nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._digest = _NOBODY

    def matches(self, token: str) -> bool:
        """Whether this is the token; takes the same time however much of it is right."""
        self._refresh()
        return hmac.compare_digest(self._digest, hashlib.sha256(token.encode()).digest())

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if stamp != self._stamp:
                self._digest = self._read()
                self._stamp = stamp
        except OSError as error:
            if self._digest:
                logger.warning("a token file cannot be read, nobody is let in: %s", error.strerror)
            self._digest, self._stamp = _NOBODY, None

    def _read(self) -> bytes:
        with self._path.open("rb") as file:
            token = file.read(MAX_TOKEN).strip()
        return hashlib.sha256(token).digest() if token else _NOBODY


class FileAuthorizer:
    """A token of its own for each agent, and one for the admin API, which may do everything there.

    The token in ``reports_file``, where one is given, is good for any agent.
    """

    def __init__(
        self, fleet_key: FleetKey, admin_file: Path, *, metrics: Metrics, reports_file: Path | None = None
    ) -> None:
        self._fleet_key = fleet_key
        self._reports = TokenFile(reports_file) if reports_file else None
        self._admin = TokenFile(admin_file)
        self._metrics = metrics

    async def agent(self, token: str) -> Authorization:
        """Whether the token is that of an agent, whatever worker it is of."""
        known = bool(self._fleet_key.reporter(token)) or self._is_shared(token)
        return Authorization.ALLOWED if known else Authorization.UNAUTHENTICATED

    async def reports(self, token: str, hello: Hello) -> Reporter | None:
        """A reporter where the token is that of the worker named in the Hello, or of all agents."""
        own = self._fleet_key.reporter(token) == f"{hello.pool}/{hello.worker}"
        access = self._answer("reports", allowed=own or self._is_shared(token))
        return Reporter() if access is Authorization.ALLOWED else None

    async def admin(self, token: str, _asked: Asked) -> Authorization:
        """Whether the token is that of the admin API; it may do whatever is asked."""
        return self._answer("admin", allowed=self._admin.matches(token))

    def user_of(self, token: str) -> str:
        """ADMIN_USER for the token of the admin API, else ""."""
        return ADMIN_USER if self._admin.matches(token) else ""

    def _is_shared(self, token: str) -> bool:
        return self._reports is not None and self._reports.matches(token)

    def _answer(self, check: str, *, allowed: bool) -> Authorization:
        access = Authorization.ALLOWED if allowed else Authorization.UNAUTHENTICATED
        self._metrics.auth(check=check, outcome=access)
        return access
