"""How workers at https URLs are verified: by the fleet's authorities and the name of their pool, not of the host.

One that no pool has, such as a dedicated renderer, is verified as any server of the web is: by the machine's
authorities and the host of its URL.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from cachefleet_native import Trust

from cachefleet_runtime.tls import TrustedAuthorities

Verified = tuple[Trust | None, str]
"""Authorities and the name in the certificate; None and "" where there is no TLS."""


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """The authorities to trust, and the name in the certificate of the worker at a URL, "" for no worker."""

    trusted: TrustedAuthorities
    server_name: Callable[[str], str]


class WorkerTrust:
    """The newest authorities for each URL."""

    def __init__(self, tls: WorkerTls | None) -> None:
        self._server_name = (lambda _: "") if tls is None else tls.server_name
        self._fleet = None if tls is None else _NewestTrust(tls.trusted)

    def of(self, url: str) -> Verified:
        """How the worker at a URL is verified. OSError where there are no authorities that can be used."""
        if not url.startswith("https:"):
            return None, ""
        if self._fleet is not None and (name := self._server_name(url)):
            return self._fleet.current(), name
        return self._machine.current(), urlsplit(url).hostname or ""

    @cached_property
    def _machine(self) -> _NewestTrust:
        paths = ssl.get_default_verify_paths()
        file = os.environ.get(paths.openssl_cafile_env, paths.openssl_cafile)
        return _NewestTrust(TrustedAuthorities(Path(file)))


class _NewestTrust:
    """Native code's form of authorities that follow their file."""

    def __init__(self, trusted: TrustedAuthorities) -> None:
        self._trusted = trusted
        self._certificates: str | None = None
        self._trust: Trust | None = None

    def current(self) -> Trust:
        """The newest. OSError where native code cannot use them."""
        certificates = self._trusted.certificates()
        if self._trust is None or certificates != self._certificates:
            try:
                self._trust = Trust((certificates or "").encode())
            except ValueError as error:
                raise OSError(f"the authorities cannot be used: {error}") from error
            self._certificates = certificates
        return self._trust
