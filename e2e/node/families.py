"""IP families of the node that tests make: CACHEFLEET_NODE_FAMILIES, read here alone, and the addresses of each.

``ipv4`` (the default), ``ipv6`` or ``ipv4,ipv6``. Of two the first is the cluster's own: its Services and its API
server are of it, unless a Service asks for both.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from e2e.cluster.binaries import UnavailableError

VARIABLE: Final = "CACHEFLEET_NODE_FAMILIES"
VALUES: Final = ("ipv4", "ipv6", "ipv4,ipv6")


@dataclass(frozen=True, slots=True)
class Family:
    """Addresses of one family. Pods, node and this machine share a bridge, so they are of one range."""

    name: str
    pods: str
    node: str
    """Of the bridge: the node's and the name server's at once."""
    machine: str
    """Of this machine on the bridge, where the API server and the registry listen."""
    first_pod: str
    services: str
    everywhere: str
    """Destination of the default route."""
    forwarding: str
    """Kernel setting below /proc/sys by which the node forwards."""

    @property
    def bits(self) -> int:
        """Length of the pods' prefix."""
        return ipaddress.ip_network(self.pods).prefixlen


IPV4: Final = Family(
    name="ipv4",
    pods="10.77.0.0/24",
    node="10.77.0.1",
    machine="10.77.0.2",
    first_pod="10.77.0.10",
    services="10.96.0.0/16",
    everywhere="0.0.0.0/0",
    forwarding="net/ipv4/ip_forward",
)
IPV6: Final = Family(
    name="ipv6",
    pods="fd77::/64",
    node="fd77::1",
    machine="fd77::2",
    first_pod="fd77::10",
    services="fd96::/112",
    everywhere="::/0",
    forwarding="net/ipv6/conf/all/forwarding",
)
BOTH: Final = (IPV4, IPV6)


def chosen() -> tuple[Family, ...]:
    """Families of the node, the cluster's own first. UnavailableError where the variable names none of ``VALUES``."""
    text = os.environ.get(VARIABLE) or VALUES[0]
    if text not in VALUES:
        raise UnavailableError(f"{VARIABLE}={text}: must be one of {' '.join(VALUES)}")
    by_name = {family.name: family for family in BOTH}
    return tuple(by_name[name] for name in text.split(","))


def names_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """The family of each address, in their order."""
    return tuple(f"ipv{ipaddress.ip_address(address).version}" for address in addresses)


def bracketed(address: str) -> str:
    """An address as it stands in a URL."""
    return f"[{address}]" if ":" in address else address
