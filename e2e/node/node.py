"""A real Kubernetes cluster of one node on this machine: control plane, scheduler, kubelet, kube-proxy, names, images.

Needs root and Debian's runc, CNI plugins, iptables, buildah and debootstrap. One at a time on a machine,
since its link and its pods' cgroups have fixed names. What touches the kernel runs in namespaces of the node's own, the
rest is in one folder, and all of it goes.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from e2e.cluster import binaries
from e2e.cluster.api_server import Identity, StartError
from e2e.cluster.binaries import NODE_PROGRAMS, cache_root
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.processes import end, spawn
from e2e.node import kubelet, leftovers, network
from e2e.node.containerd import Containerd
from e2e.node.devices import DeviceDriver
from e2e.node.families import chosen
from e2e.node.images import Builder, Image, vllm_image
from e2e.node.machine import check_machine
from e2e.node.namespaces import Namespaces

READY_SECONDS: Final = 300.0


class Node:
    """Use as a context manager; ``cluster`` is its control plane, ``images`` what pods can be made from."""

    def __init__(self, *, crds: Path | None = None) -> None:
        self._crds = crds
        self._stack = ExitStack()
        self.images: dict[str, Image] = {}

    def __enter__(self) -> Self:
        check_machine()
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.kubeconfig

    @property
    def folder(self) -> Path:
        return self.cluster.folder

    def reach(self, registry: str) -> None:
        """Let containerd pull from a registry that speaks plain HTTP."""
        folder = self._containerd.registries / registry
        folder.mkdir(parents=True)
        url = f"http://{registry}"
        (folder / "hosts.toml").write_text(f'server = "{url}"\n[host."{url}"]\ncapabilities = ["pull", "resolve"]\n')

    def device_driver(self) -> DeviceDriver:
        """A driver of devices that are not there, which does not run yet."""
        binary = binaries.ensured(NODE_PROGRAMS)["devicedriver"]
        places = (self.folder, kubelet.root(self.folder), self._containerd.cdi)
        return DeviceDriver(binary, *places, kubeconfig=self.kubeconfig, inside=self._inside)

    def _start(self) -> None:
        self._stack.enter_context(_alone())
        programs = binaries.ensured(NODE_PROGRAMS)
        found = binaries.find()
        marker = _marker()
        self._stack.enter_context(leftovers.swept(marker))
        pause, self.images = _load(programs, marker)
        own = chosen()
        services = tuple(family.services for family in own)
        self.cluster = ControlPlane(found, crds=self._crds, address=own[0].machine, services=services, with_node=True)
        self._stack.callback(self.cluster.stop)
        self._inside = self._stack.enter_context(Namespaces())
        self._stack.callback(network.down)
        network.up(self._inside)
        self.cluster.start()
        marker.write_text(str(self.folder))
        network.configure(self.folder / "cni")
        self._containerd = Containerd(self.folder, programs, pause, self._inside)
        self._containerd.start()
        self._stack.callback(self._containerd.stop)
        self._run_parts(programs)
        self._wait(self._is_ready, "node")

    def _run_parts(self, programs: dict[str, Path]) -> None:
        folder, cluster = self.folder, self.cluster
        serving = cluster.server_pair(kubelet.NODE, (kubelet.NODE, *kubelet.addresses()))
        pki = kubelet.Pki(cluster.ca, serving)
        scheduler = kubelet.scheduler(programs["kube-scheduler"], self._own("system:kube-scheduler"))
        self._stack.callback(end, spawn(scheduler, folder / "kube-scheduler.log"))
        own = self._own(f"system:node:{kubelet.NODE}", "system:nodes")
        socket = self._containerd.socket
        self._spawn("kubelet", kubelet.kubelet(programs["kubelet"], folder, kubeconfig=own, pki=pki, socket=socket))
        proxy = kubelet.proxy(programs["kube-proxy"], folder, kubeconfig=self._own("system:kube-proxy"))
        self._spawn("kube-proxy", proxy)
        self._spawn("coredns", kubelet.name_server(programs["coredns"], folder, kubeconfig=cluster.kubeconfig))

    def _own(self, user: str, *groups: str) -> Path:
        return self.cluster.kubeconfig_for(Identity(user, groups))

    def _spawn(self, name: str, command: list[object]) -> None:
        process = self._inside.spawn(command, self.folder / f"{name}.log")
        self._stack.callback(self._inside.end, process)

    def _is_ready(self) -> bool:
        path = "-o=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self.kubectl("get", "nodes", path).strip() == "True"

    def kubectl(self, *arguments: str) -> str:
        """What kubectl prints; StartError where it fails."""
        command = [str(part) for part in (*self.cluster.kubectl(), *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartError(f"kubectl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def _wait(self, ready: Callable[[], bool], name: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                raise StartError(f"the {name} was not ready in time:\n{self.cluster.tail('kubelet')}")
            time.sleep(0.2)


def load_images() -> None:
    """Beforehand what takes minutes on a new machine: programs and images, kept where a node looks for them."""
    check_machine()
    programs = binaries.ensured(NODE_PROGRAMS)
    marker = _marker()
    with _alone(), leftovers.swept(marker):
        _load(programs, marker)


def _load(programs: Mapping[str, Path], marker: Path) -> tuple[Image, dict[str, Image]]:
    """What holds a pod's network, and what its containers are made from. The containerd that takes them ends again."""
    builder = Builder()
    pause, vllm, product = builder.pause(programs["pause"]), vllm_image(), builder.product()
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="cachefleet-images-", ignore_cleanup_errors=True))
        marker.write_text(folder)
        containerd = Containerd(Path(folder), programs, pause, stack.enter_context(Namespaces()))
        containerd.start()
        stack.callback(containerd.stop)
        containerd.load(vllm, builder.save_vllm)
        for image in (pause, product):
            containerd.load(image, partial(builder.save, image))
        containerd.keep_only({image.reference for image in (pause, vllm, product)})
    builder.keep_only((builder.python(), pause, product))
    return pause, {"vllm": vllm, "cachefleet": product}


def _marker() -> Path:
    return cache_root() / "node" / ".running"


class _alone:  # noqa: N801  # used as a function
    """One node at a time on a machine."""

    def __enter__(self) -> None:
        path = cache_root() / "node" / ".lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("waiting for the other node on this machine to end", file=sys.stderr, flush=True)
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        self._file.close()
