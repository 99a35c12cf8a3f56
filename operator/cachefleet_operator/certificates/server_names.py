"""The names in the certificates of servers (pure)."""

from __future__ import annotations

import ipaddress
from typing import Final
from urllib.parse import urlsplit

from cachefleet_core.tls_names import WORKERS_DOMAIN, worker_server_name
from cachefleet_operator import names
from cachefleet_operator.settings import Settings

_HERE: Final = frozenset({"localhost", "127.0.0.1"})
"""Names for whoever comes by a forwarded port, or from within the pod."""


def worker_names(pool: str) -> frozenset[str]:
    """The names in the certificate of the workers of a pool, "namespace/name"."""
    namespace, _, name = pool.partition("/")
    return _HERE | {worker_server_name(pool), WORKERS_DOMAIN, f"{names.service(name)}.{namespace}.svc"}


def control_plane_names(settings: Settings) -> frozenset[str]:
    """The names in the control plane's certificate: those that agents and the operator use, and others of the same."""
    hosts = {settings.control_plane_address.rpartition(":")[0].strip("[]"), urlsplit(settings.admin_url).hostname or ""}
    services = {host.removesuffix(".svc") for host in hosts if host.endswith(".svc")}
    return _HERE | set(map(_canonical, hosts - {""})) | services | {f"{name}.svc.cluster.local" for name in services}


def _canonical(host: str) -> str:
    """An address as it is read from a certificate, which has no zone; a DNS name as it is."""
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return host
