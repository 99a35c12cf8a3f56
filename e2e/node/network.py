"""The pods' network: a bridge in the node's namespaces, with an address of this machine's on it too.

This machine has one end of a pair of links; the API server listens there. Which addresses all of them have is in
families.py.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from e2e.node.families import Family, chosen
from e2e.node.namespaces import Namespaces

BRIDGE: Final = "cachefleet0"
HARDWARE: Final = "02:ca:c4:e0:00:01"
"""The bridge's own: without one it takes the least of its pods', and each that goes is then a gateway lost to the rest
for the ten seconds after which IPv6 asks again for a neighbour."""
LINK: Final = "cachefleet1"
PLUGINS: Final = Path("/usr/lib/cni")


def up(inside: Namespaces) -> None:
    """Make the bridge, let it forward, and connect this machine with it; all of it ends with the namespaces."""
    down()
    inside.run("ip", "link", "add", BRIDGE, "address", HARDWARE, "type", "bridge")
    inside.run("ip", "link", "set", BRIDGE, "up")
    _ip("link", "add", LINK, "type", "veth", "peer", "name", "machine", "netns", str(inside.pid))
    inside.run("ip", "link", "set", "machine", "master", BRIDGE, "up")
    _ip("link", "set", LINK, "up")
    for family in chosen():
        inside.run("ip", *_add(family, family.node), "dev", BRIDGE)
        inside.run("sh", "-c", f"echo 1 >/proc/sys/{family.forwarding}")
        _ip(*_add(family, family.machine), "dev", LINK)


def down() -> None:
    """Remove this machine's link now: with the namespaces it ends a moment after their last process."""
    if Path("/sys/class/net", LINK).exists():
        _ip("link", "delete", LINK)


def configure(folder: Path) -> None:
    """Write the CNI configuration into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "10-cachefleet.conflist").write_text(json.dumps(_configuration(folder / "addresses")))


def _configuration(addresses: Path) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(addresses),
            "ranges": [
                [{"subnet": each.pods, "rangeStart": each.first_pod, "gateway": each.node}] for each in chosen()
            ],
            "routes": [{"dst": each.everywhere} for each in chosen()],
        },
    }
    return {"cniVersion": "1.0.0", "name": "cachefleet", "plugins": [bridge, {"type": "portmap"}]}


def _add(family: Family, address: str) -> list[str]:
    """The beginning of a command; an IPv6 address may be used at once, since nobody else can have it."""
    whose = [f"{address}/{family.bits}", *(["nodad"] if family.name == "ipv6" else [])]
    return ["address", "add", *whose]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
