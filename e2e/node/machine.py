"""Whether this machine can be a Kubernetes node: who we are, what is installed, what its kernel lets us do."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from e2e.cluster.binaries import UnavailableError
from e2e.node.families import IPV6, chosen
from e2e.node.namespaces import Namespaces, NamespacesError
from e2e.node.network import PLUGINS

TOOLS: Final = {
    "buildah": "buildah",
    "conntrack": "conntrack",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "iptables": "iptables",
    "runc": "runc",
    f"{PLUGINS}/bridge": "containernetworking-plugins",
}
"""What must be installed, and the Debian package that has it."""
PROBES: Final = {
    "bridge": "ip link add cachefleet0 type bridge",
    "rules of iptables": "iptables -w -t nat -S",
    "mounts": "mount -t tmpfs none /mnt",
    "namespaces of pods": "unshare --pid --net --uts --ipc --fork true",
}
"""What a node does first of each kind."""
PROBES_OF_IPV6: Final = {
    "addresses of IPv6": f"ip address add {IPV6.node}/128 dev lo",
    "rules of ip6tables": "ip6tables -w -t nat -S",
}


def check_machine() -> None:
    """UnavailableError, with what to do, where this machine cannot be a node."""
    if os.geteuid() != 0:
        raise UnavailableError("a node needs root: containers, a bridge and iptables rules are made")
    probes = PROBES | (PROBES_OF_IPV6 if IPV6 in chosen() else {})
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if missing:
        raise UnavailableError(f"a node needs more packages: apt-get install {' '.join(missing)}")
    try:
        with Namespaces() as inside:
            for what, command in probes.items():
                _probe(inside, what, command)
    except NamespacesError as problem:
        raise UnavailableError(f"this machine allows no namespaces, not even root: {problem}") from problem


def _probe(inside: Namespaces, what: str, command: str) -> None:
    try:
        inside.run("sh", "-c", command)
    except subprocess.CalledProcessError as problem:
        raise UnavailableError(f"this machine allows no {what}, not even root: {problem.stderr.strip()}") from problem
