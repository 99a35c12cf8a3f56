"""Addresses of the control planes: configured URLs, or resolved by DNS."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from cachefleet_core.report_frames import PATH


@dataclass(frozen=True, slots=True)
class Target:
    """One control plane replica; ``host`` is its certificate's name where the URL holds an IP address."""

    url: str
    host: str | None = None


def static_targets(urls: tuple[str, ...]) -> list[Target]:
    """The configured URLs, with the reports path where they have none."""
    return [Target(urlunsplit(part._replace(path=part.path.rstrip("/") or PATH))) for part in map(urlsplit, urls)]


async def resolve(name: str, *, tls: bool) -> list[Target]:
    """A target for each address of ``host:port``. OSError where the name does not resolve."""
    host, _, port = name.rpartition(":")
    host = host.strip("[]")
    found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    addresses = sorted({str(entry[4][0]) for entry in found})
    scheme = "wss" if tls else "ws"
    return [
        Target(f"{scheme}://{f'[{address}]' if ':' in address else address}:{port}{PATH}", host)
        for address in addresses
    ]


@dataclass(slots=True)
class Registration:
    """Whether a control plane has admitted this worker; without any configured, readiness does not wait."""

    wanted: bool
    registered: bool = False
    """A control plane has admitted the worker at least once."""

    @property
    def done(self) -> bool:
        """Whether readiness need not wait for a control plane."""
        return self.registered or not self.wanted
