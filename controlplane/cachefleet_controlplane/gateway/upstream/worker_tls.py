"""How workers at https URLs are verified: by the fleet's authorities and the name of their pool, not of the host.

Native code verifies them as ``WorkerTls`` says, by authorities that follow their file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from cachefleet_core.native import MODULE
from cachefleet_runtime.lru import LruMap
from cachefleet_runtime.tls import TrustedAuthorities

if TYPE_CHECKING:  # it may not be installed
    from cachefleet_native import Trust

AGAIN_SECONDS: Final = 60.0
"""After which a worker whose TLS native code did not accept is tried by it again."""
MAX_REFUSED: Final = 1024

Verified = tuple["Trust | None", str]
"""Authorities and the name in the certificate; None and "" where native code does not verify."""


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """The authorities to trust, and the name in the certificate of the worker at a URL, "" for no worker."""

    trusted: TrustedAuthorities
    server_name: Callable[[str], str]


class NativeTrust:
    """The newest authorities, and the workers that they refused lately."""

    def __init__(self, tls: WorkerTls, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tls = tls
        self._clock = clock
        self._refused: LruMap[str, float] = LruMap(MAX_REFUSED)
        self._certificates: str | None = None
        self._trust: Trust | None = None

    def of(self, url: str) -> Verified:
        """How the worker at a URL is verified."""
        if not url.startswith("https:") or not (name := self._tls.server_name(url)):
            return None, ""
        self._follow()
        until = self._refused.get(url)
        if self._trust is None or (until is not None and self._clock() < until):
            return None, ""
        return self._trust, name

    def refused(self, url: str) -> None:
        """Leave a worker to others for a while."""
        self._refused.put(url, self._clock() + AGAIN_SECONDS)

    def _follow(self) -> None:
        if (certificates := self._tls.trusted.certificates()) == self._certificates:
            return
        self._certificates, self._trust = certificates, None
        self._refused.clear()
        if certificates is not None:
            try:
                self._trust = import_module(MODULE).Trust(certificates.encode())
            except ValueError:  # OpenSSL reads more
                self._trust = None
