"""Where the control planes are: listed, or found by DNS."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from cachefleet_core.reports import PATH


@dataclass(frozen=True, slots=True)
class Target:
    """One control plane replica; ``host`` is the name its certificate must bear, where the URL has an address."""

    url: str
    host: str | None = None


def static_targets(urls: tuple[str, ...]) -> list[Target]:
    """The listed URLs, with the reports path where they have none."""
    return [Target(urlunsplit(part._replace(path=part.path.rstrip("/") or PATH))) for part in map(urlsplit, urls)]


async def resolve(name: str, *, tls: bool) -> list[Target]:
    """Every address behind ``host:port``. OSError where the name does not resolve."""
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
    """Whether a control plane knows this worker; without any to report to, that is not waited for."""

    wanted: bool
    registered: bool = False
    """A control plane has admitted it once."""

    @property
    def done(self) -> bool:
        """Nothing has to be waited for any more."""
        return self.registered or not self.wanted
