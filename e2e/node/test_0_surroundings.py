"""A node leaves its machine as it found it. What a whole node leaves is compared at the session's end."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster.processes import spawn
from e2e.node import network
from e2e.node.families import chosen
from e2e.node.namespaces import SETTINGS, Namespaces
from e2e.node.site import until
from e2e.node.surroundings import surroundings

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]
TOUCHED: Final = (
    "for one in " + " ".join(SETTINGS) + "; do [ ! -e /proc/sys/$one ] || echo 7 >/proc/sys/$one; done",
    "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet",
    "mkdir -p /var/lib/cni/results /var/lib/kubelet/device-plugins /var/log/containers /run/netns /opt/cni /etc/cni/x",
    "iptables -w -t nat -N KUBE-SERVICES",
    "ip6tables -w -t nat -N KUBE-SERVICES",
    "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding",
    "ip netns add cni-of-a-pod",
    "mount -t tmpfs none /mnt",
)
"""As containerd, the kubelet, kube-proxy and CNI plugins do."""
HOLDER: Final = f"""
import time
from e2e.node import network
from e2e.node.families import chosen
from e2e.node.namespaces import Namespaces
with Namespaces() as inside:
    network.up(inside)
    for command in {TOUCHED!r}:
        inside.run("sh", "-c", command)
    print(inside.pid, flush=True)
    time.sleep(600)
"""


def test_what_is_done_inside_is_not_done_to_the_machine(tmp_path: Path) -> None:
    before = surroundings()
    with Namespaces() as inside:
        network.up(inside)
        for command in TOUCHED:
            inside.run("sh", "-c", command)
        assert inside.run("cat", "/proc/sys/kernel/panic").strip() == "7"
        server = inside.spawn(["sleep", "600"], tmp_path / "sleep.log")
        for family in chosen():
            with pytest.raises(ConnectionRefusedError):  # it is reached, and nobody listens there
                socket.create_connection((family.node, 9), timeout=60)
        during = {name for name in surroundings() if name not in before and network.LINK not in name}
        assert during == set()
        inside.end(server)
        assert server.returncode is not None
        network.down()
    assert surroundings() == before


def test_the_bridge_keeps_its_hardware_address_whichever_pods_come_and_go() -> None:
    with Namespaces() as inside:
        network.up(inside)
        inside.run("ip", "link", "add", "pod", "address", "02:00:00:00:00:01", "type", "veth")
        inside.run("ip", "link", "set", "pod", "master", network.BRIDGE, "up")
        assert network.HARDWARE in inside.run("ip", "link", "show", network.BRIDGE)
        network.down()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_node_that_is_killed_leaves_nothing_either(tmp_path: Path, sent: signal.Signals) -> None:
    before = surroundings()
    log = tmp_path / "holder.log"
    holder = spawn([sys.executable, "-c", HOLDER], log)
    while not log.read_text().endswith("\n"):
        assert holder.poll() is None, log.read_text()
    inside = int(log.read_text())
    first = os.pidfd_open(inside)
    holder.send_signal(sent)
    holder.wait()
    assert select.select([first], [], [], 180)[0], "its namespaces are still there"
    until(lambda: not Path("/sys/class/net", network.LINK).exists(), seconds=180)
    assert surroundings() == before
