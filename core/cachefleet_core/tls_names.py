"""Names of TLS inside a cluster: the files of a mounted certificate, and the names that certificates are issued for."""

from __future__ import annotations

from typing import Final

CERTIFICATE: Final = "tls.crt"
PRIVATE_KEY: Final = "tls.key"
AUTHORITIES: Final = "ca.crt"
"""Certificates of the authorities to trust, PEM; the layout of Secrets that cert-manager writes."""

ENGINE_PORT_NAME: Final = "engine-tls"
"""Port of an engine that serves TLS; one that does not has a port named "engine"."""
AGENT_PORT_NAME: Final = "agent-tls"

WORKERS_DOMAIN: Final = "workers.cachefleet.internal"
"""Also a name of every worker's certificate: who scrapes the workers of many pools verifies this one."""


def worker_server_name(pool: str) -> str:
    """The name in the certificates of a pool's workers; ``pool`` is "namespace/name". It is in no DNS.

    A certificate for ``*.NAMESPACE.workers.cachefleet.internal`` covers all pools of a namespace.
    """
    namespace, _, name = pool.partition("/")
    return f"{name}.{namespace}.{WORKERS_DOMAIN}"
