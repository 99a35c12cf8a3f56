"""The pods' network: a bridge in the node's namespaces, with an address of this machine's on it too.

The bridge's own address is the node's and the name server's at once. This machine has one end of a pair of links; the
API server listens there.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from e2e.node.namespaces import Namespaces

BRIDGE: Final = "cachefleet0"
ADDRESS: Final = "10.77.0.1"
LINK: Final = "cachefleet1"
MACHINE: Final = "10.77.0.2"
PODS: Final = "10.77.0.0/24"
FIRST_POD: Final = "10.77.0.10"
PLUGINS: Final = Path("/usr/lib/cni")


def up(inside: Namespaces) -> None:
    """Make the bridge, let it forward, and connect this machine with it; all of it ends with the namespaces."""
    down()
    bits = PODS.rsplit("/", 1)[1]
    inside.run("ip", "link", "add", BRIDGE, "type", "bridge")
    inside.run("ip", "address", "add", f"{ADDRESS}/{bits}", "dev", BRIDGE)
    inside.run("ip", "link", "set", BRIDGE, "up")
    inside.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    _ip("link", "add", LINK, "type", "veth", "peer", "name", "machine", "netns", str(inside.pid))
    inside.run("ip", "link", "set", "machine", "master", BRIDGE, "up")
    _ip("address", "add", f"{MACHINE}/{bits}", "dev", LINK)
    _ip("link", "set", LINK, "up")


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
            "ranges": [[{"subnet": PODS, "rangeStart": FIRST_POD, "gateway": ADDRESS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "1.0.0", "name": "cachefleet", "plugins": [bridge, {"type": "portmap"}]}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
