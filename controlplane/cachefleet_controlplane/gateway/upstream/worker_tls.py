"""How workers at https URLs are verified: by the fleet's authorities and the name of their pool, not of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachefleet_runtime.tls import TrustedAuthorities


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """The authorities to trust, and the name in the certificate of the worker at a URL, "" for no worker."""

    trusted: TrustedAuthorities
    server_name: Callable[[str], str]
