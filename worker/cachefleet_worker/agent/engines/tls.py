"""How the agent verifies its engine, which serves TLS at loopback as it does to the gateway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_core.tls_names import AUTHORITIES, worker_server_name
from cachefleet_runtime.tls import TrustedAuthorities
from cachefleet_worker.agent.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class EngineTls:
    """The authorities that the engine's certificate is verified by, and its name; None for the URL's host."""

    trusted: TrustedAuthorities
    server_name: str | None = None


PLAIN: Final = EngineTls(TrustedAuthorities(None))
"""For engines without TLS; one with a certificate of the web is verified as any."""


def engine_tls(settings: AgentSettings) -> EngineTls:
    """What the settings say. OSError where the authorities cannot be read."""
    if settings.tls_folder is None:
        return PLAIN
    return EngineTls(TrustedAuthorities(settings.tls_folder / AUTHORITIES), worker_server_name(settings.pool))
