"""TLS of one replica, from the certificates in a mounted folder: as a server, and as a client of its workers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.gateway.upstream.worker_tls import WorkerTls
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_runtime.tls import TrustedAuthorities, server_context


@dataclass(frozen=True, slots=True)
class TlsParts:
    """TLS of the internal port, and how workers are verified; None each where there is none."""

    server: ssl.SSLContext | None
    workers: WorkerTls | None


def tls_parts(settings: Settings, credentials: Credentials) -> TlsParts:
    """Both from the folder that the settings name. SettingsError where the certificates in it cannot be used."""
    if settings.tls_folder is None:
        return TlsParts(None, None)
    trusted = settings.tls_folder / AUTHORITIES
    try:
        workers = WorkerTls(TrustedAuthorities(trusted), credentials.server_name)
        return TlsParts(server_context(settings.tls_folder), workers)
    except OSError as error:
        raise SettingsError([f"CACHEFLEET_TLS_FOLDER: {error}"]) from error
