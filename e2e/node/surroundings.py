"""What a node could change of its machine: kernel settings, links, rules, mounts, cgroups and folders."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Final

from e2e.node.leftovers import CGROUPS
from e2e.node.namespaces import SETTINGS

KERNEL: Final = Path("/proc/sys")
NETWORKS: Final = ("net/bridge", "net/ipv4", "net/ipv6", "net/netfilter")
COUNTERS: Final = ("net/netfilter/nf_conntrack_count",)
FOLDERS: Final = (
    *("/etc/cni", "/opt/cni", "/opt/containerd", "/opt/nri", "/run/containerd", "/run/netns"),
    *("/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet", "/var/lib/kube-proxy"),
    *("/var/log/containers", "/var/log/pods", "/usr/libexec/kubernetes"),
)
RULES: Final = ("iptables-save", "ip6tables-save")


def surroundings() -> dict[str, str]:
    """One entry for each thing, so that the difference of two tells what changed."""
    return _settings() | _files() | _links() | _rules() | _mounts() | _cgroups()


def _settings() -> dict[str, str]:
    paths = [KERNEL / name for name in SETTINGS]
    paths += [path for folder in NETWORKS for path in (KERNEL / folder).rglob("*") if path.is_file()]
    found = {}
    for path in paths:
        if str(path.relative_to(KERNEL)) not in COUNTERS:
            with contextlib.suppress(OSError):  # some can only be written
                found[f"setting {path}"] = path.read_text().strip()
    return found


def _files() -> dict[str, str]:
    tops = [Path(folder) for folder in FOLDERS if Path(folder).exists()]
    return {f"file {path}": "" for top in tops for path in (top, *top.rglob("*"))}


def _links() -> dict[str, str]:
    return {f"link {path.name}": "" for path in Path("/sys/class/net").iterdir()}


def _rules() -> dict[str, str]:
    found: dict[str, str] = {}
    for command in RULES:
        said = subprocess.run([command], capture_output=True, text=True, check=True).stdout.splitlines()
        found |= {f"rule of {command}: {line}": "" for line in said if line.startswith("-")}
    return found


def _mounts() -> dict[str, str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {f"mount {line.split()[4]}": "" for line in lines}


def _cgroups() -> dict[str, str]:
    return {f"cgroup {path}": "" for path in (*CGROUPS.glob("*/kubepods"), *CGROUPS.glob("kubepods"))}
