"""How workers at https URLs are verified: by the fleet's authorities and the name of their pool, not of the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_runtime.tls import TrustedAuthorities


@dataclass(frozen=True, slots=True)
class WorkerTls:
    """The authorities to trust, and the name in the certificate of the worker at a URL, "" for no worker."""

    trusted: TrustedAuthorities
    server_name: Callable[[str], str]


def worker_tls(folder: Path | None, server_name: Callable[[str], str]) -> WorkerTls | None:
    """By the authorities in a folder; None without one. OSError where they cannot be read."""
    return None if folder is None else WorkerTls(TrustedAuthorities(folder / AUTHORITIES), server_name)
