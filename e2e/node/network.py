"""The pods' network: one bridge, whose own address is the node's, the API server's and the name server's at once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

BRIDGE: Final = "cachefleet0"
ADDRESS: Final = "10.77.0.1"
PODS: Final = "10.77.0.0/24"
PLUGINS: Final = Path("/usr/lib/cni")
NAMESPACES: Final = Path("/run/netns")


def up() -> None:
    """Make the bridge and let it forward."""
    down()
    _ip("link", "add", BRIDGE, "type", "bridge")
    _ip("address", "add", f"{ADDRESS}/{PODS.rsplit('/', 1)[1]}", "dev", BRIDGE)
    _ip("link", "set", BRIDGE, "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def configure(folder: Path) -> None:
    """Write the CNI configuration into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "10-cachefleet.conflist").write_text(json.dumps(_configuration(folder / "addresses")))


def down() -> None:
    """Remove the bridge."""
    if Path("/sys/class/net", BRIDGE).exists():
        _ip("link", "delete", BRIDGE)


def namespaces() -> set[str]:
    """Network namespaces of pods that exist on this machine."""
    return {path.name for path in NAMESPACES.glob("cni-*")} if NAMESPACES.is_dir() else set()


def remove(names: set[str]) -> None:
    """Remove network namespaces; the pods in them must be gone."""
    for name in names:
        _ip("netns", "delete", name)


def _configuration(addresses: Path) -> dict[str, object]:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(addresses),
            "ranges": [[{"subnet": PODS, "gateway": ADDRESS}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return {"cniVersion": "1.0.0", "name": "cachefleet", "plugins": [bridge, {"type": "portmap"}]}


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
