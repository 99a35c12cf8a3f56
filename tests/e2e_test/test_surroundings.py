"""What the node's tests compare before and after: what a node could have touched, and nothing of other programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
COMPARED: Final = """
import subprocess, sys
from e2e.node.surroundings import surroundings
before = surroundings()
subprocess.run(["sh", "-ec", sys.argv[1]], check=True)
after = surroundings()
print(*sorted(before.items() ^ after.items()), sep="\\n")
"""
PROGRAMS: Final = ("unshare", "ip", "iptables-save")

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, PROGRAMS)), reason="only root may change namespaces of its own"
)


def difference(command: str) -> str:
    """What is another after a command, in namespaces that end with it."""
    alone = ["unshare", "--net", "--mount", sys.executable, "-c", COMPARED, command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *filter(None, sys.path)))}
    done = subprocess.run(alone, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "command",
    [
        "mount -t tmpfs none {place}",
        "ip link add docker0 type bridge",
        "iptables -w -N OTHERS && iptables -w -A OTHERS -j ACCEPT",
        "ip link set lo up && echo 1 >/proc/sys/net/ipv4/conf/lo/forwarding",
        "mkdir {place}/containerd",
    ],
)
def test_what_another_program_does_meanwhile_is_no_matter(command: str, tmp_path: Path) -> None:
    assert difference(command.format(place=tmp_path)) == ""


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("mount -t tmpfs none /mnt", "mount /mnt"),
        ("ip link add cachefleet0 type bridge", "link cachefleet0"),
        ("iptables -w -t nat -N KUBE-SERVICES", ":KUBE-SERVICES"),
        ("iptables -w -A INPUT -s 10.77.0.0/24 -j ACCEPT", "10.77.0.0/24"),
        ("echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet", "route_localnet"),
    ],
)
def test_what_a_node_leaves_is_told(command: str, told: str) -> None:
    assert told in difference(command)
