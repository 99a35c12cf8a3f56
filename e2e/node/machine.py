"""Whether this machine can be a Kubernetes node: who we are, what is installed, what its kernel lets us do."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from e2e.cluster.binaries import UnavailableError
from e2e.node.network import PLUGINS

TOOLS: Final = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
}
"""What must be installed, and the Debian package that has it."""
BRIDGE: Final = f"cftry{os.getpid()}"
"""Of this process alone: another may be trying the same now."""
PROBES: Final = {
    "a bridge": f"ip link add {BRIDGE} type bridge && ip link delete {BRIDGE}",
    "rules of iptables": "iptables -w -t nat -S",
    "mounts": "unshare --mount sh -c 'mount -t tmpfs none /mnt'",
    "namespaces": "unshare --pid --net --uts --ipc --fork true",
}
"""What a node does first of each kind; nothing stays of it."""


def check_machine() -> None:
    """UnavailableError, with what to do, where this machine cannot be a node."""
    if os.geteuid() != 0:
        raise UnavailableError("a node needs root: containers, a bridge and iptables rules are made")
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        raise UnavailableError(f"a node needs more packages: apt-get install {' '.join(missing)}")
    for what, command in PROBES.items():
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"this machine allows no {what}, not even root: {done.stderr.strip()}")
