"""What a node could change of its machine: kernel settings, links, rules, mounts, cgroups and folders.

Other programs change their own meanwhile: only what has a name or a place of a node's is looked at.
"""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from e2e.node.families import BOTH
from e2e.node.leftovers import CGROUPS
from e2e.node.namespaces import SETTINGS
from e2e.node.network import BRIDGE, LINK

KERNEL: Final = Path("/proc/sys")
NETWORK_SETTINGS: Final = (
    *("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"),
    *("net/ipv4/ip_forward", "net/ipv4/ip_nonlocal_bind"),
    *("net/ipv4/conf/all/route_localnet", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/all/arp_ignore"),
    *("net/ipv4/vs/conntrack", "net/ipv4/vs/conn_reuse_mode", "net/ipv4/vs/expire_nodest_conn"),
    *("net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6"),
    *("net/netfilter/nf_conntrack_max", "net/netfilter/nf_conntrack_tcp_be_liberal"),
    *("net/netfilter/nf_conntrack_tcp_timeout_established", "net/netfilter/nf_conntrack_tcp_timeout_close_wait"),
    *("net/netfilter/nf_conntrack_udp_timeout", "net/netfilter/nf_conntrack_udp_timeout_stream"),
)
"""What kube-proxy and CNI plugins set."""
FOLDERS: Final = (
    *("/etc/cni", "/opt/cni", "/opt/nri", "/var/lib/cni", "/var/lib/kubelet", "/var/lib/kube-proxy"),
    *("/var/log/containers", "/var/log/pods", "/usr/libexec/kubernetes"),
)
SHARED_FOLDERS: Final = ("/opt/containerd", "/run/containerd", "/run/netns", "/var/lib/containerd")
"""Of which others may have parts, too; those of a node are named so."""
OWN: Final = re.compile(r"/(k8s\.io|cni-)")
MOUNTED: Final = (*FOLDERS, *SHARED_FOLDERS, "/mnt", f"{tempfile.gettempdir()}/cachefleet")
"""Where a node mounts; /mnt is what its tests mount."""
RULES: Final = ("iptables-save", "ip6tables-save")
CHAINS: Final = ("KUBE-", "CNI-", BRIDGE, LINK, *(family.node.removesuffix("1") for family in BOTH))
"""What rules of a node name."""


def surroundings() -> dict[str, str]:
    """One entry for each thing, so that the difference of two tells what changed."""
    return _settings() | _files() | _links() | _rules() | _mounts() | _cgroups()


def _settings() -> dict[str, str]:
    found = {}
    for path in (KERNEL / name for name in (*SETTINGS, *NETWORK_SETTINGS)):
        with contextlib.suppress(OSError):  # some can only be written, or are of a module that is not loaded
            found[f"setting {path}"] = path.read_text().strip()
    return found


def _files() -> dict[str, str]:
    paths = [*_below(FOLDERS), *(path for path in _below(SHARED_FOLDERS) if OWN.search(str(path)))]
    return {f"file {path}": "" for path in paths}


def _below(folders: tuple[str, ...]) -> Iterator[Path]:
    for top in map(Path, folders):
        if top.exists():
            yield top
            yield from top.rglob("*")


def _links() -> dict[str, str]:
    names = (name for _, name in socket.if_nameindex())
    return {f"link {name}": "" for name in names if name in {BRIDGE, LINK} or name.startswith(("cni", "kube-"))}


def _rules() -> dict[str, str]:
    found: dict[str, str] = {}
    for command in RULES:
        said = subprocess.run([command], capture_output=True, text=True, check=True).stdout.splitlines()
        ours = [line for line in said if line.startswith(("-", ":")) and any(name in line for name in CHAINS)]
        found |= {f"rule of {command}: {line.partition(' [')[0]}": "" for line in ours}
    return found


def _mounts() -> dict[str, str]:
    """Places, which mountinfo has as octets where they hold spaces."""
    places = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return {f"mount {place}": "" for place in places if place.startswith(MOUNTED)}


def _cgroups() -> dict[str, str]:
    return {f"cgroup {path}": "" for path in (*CGROUPS.glob("*/kubepods"), *CGROUPS.glob("kubepods"))}
