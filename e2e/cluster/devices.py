"""Devices that nobody has: a class, a node with some of them, and a scheduler that gives them to pods who ask for it.

What a DRA driver publishes is written here by hand; scheduler and claims' controller are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import yaml

from e2e.cluster import rights
from e2e.cluster.api_server import Identity
from e2e.cluster.bench import Bench
from e2e.cluster.binaries import NODE_PROGRAMS, ensured
from e2e.cluster.kube import Object
from e2e.cluster.processes import end, spawn

DRIVER: Final = "gpu.example.com"
API: Final = "resource.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Devices:
    """Names of the class of a test's devices, of their node and of the scheduler; all are the namespace's own."""

    bench: Bench

    @property
    def name(self) -> str:
        return f"devices-{self.bench.namespace}"

    def wanted(self, **claims: object) -> Object:
        """Parts of a pool's spec that claim such devices and ask for this scheduler."""
        device = {"claims": claims or {"className": self.name}, "memoryMiB": 8192 if claims else None}
        return {"device": device, "podTemplate": {"spec": {"schedulerName": self.name}}}

    def publish(self, *memories: str, taints: tuple[Object, ...] = ()) -> None:
        """As the node's driver: a device for each memory, in place of what it published before."""
        devices = [
            {
                "name": f"gpu-{number}",
                "attributes": {"type": {"string": "gpu"}, "pool": {"string": self.name}},
                "capacity": {"memory": {"value": memory}},
                **({"taints": list(taints)} if taints else {}),
            }
            for number, memory in enumerate(memories)
        ]
        pool = {"name": self.name, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": self.name, "pool": pool, "devices": devices}
        manifest = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": self.name}, "spec": spec}
        self.bench.kube.apply(manifest, manager="driver")

    @contextmanager
    def tainted(self, device: str, **taint: str) -> Iterator[None]:
        """As an administrator: a DeviceTaintRule for one of them, until the block ends."""
        spec = {"deviceSelector": {"driver": DRIVER, "pool": self.name, "device": device}, "taint": taint}
        self.bench.kube.create(
            {"apiVersion": API, "kind": "DeviceTaintRule", "metadata": {"name": self.name}, "spec": spec}
        )
        try:
            yield
        finally:
            self.bench.kube.delete("DeviceTaintRule", "", self.name)

    def let_read(self) -> None:
        """Give the operator's user what it needs for the memory of devices, which is not a namespace's."""
        kube, name, group = self.bench.kube, self.name, "rbac.authorization.k8s.io"
        rules = [
            {"apiGroups": ["resource.k8s.io"], "resources": ["deviceclasses"], "verbs": ["get"]},
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices", "devicetaintrules"], "verbs": ["list"]},
        ]
        about = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
        kube.create({**about, "kind": "ClusterRole", "rules": rules})
        role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
        user = {"apiGroup": group, "kind": "User", "name": self.bench.identity.name}
        kube.create({**about, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [user]})
        rights.wait_for_right(kube, self.bench.identity.name, "resource.k8s.io", "devicetaintrules", "list")

    def start(self, stack: ExitStack) -> None:
        """Class, node and scheduler."""
        kube, metadata = self.bench.kube, {"name": self.name}
        expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].pool == '{self.name}'"
        selectors = [{"cel": {"expression": expression}}]
        kube.create({"apiVersion": API, "kind": "DeviceClass", "metadata": metadata, "spec": {"selectors": selectors}})
        stack.callback(kube.delete, "DeviceClass", "", self.name)
        kube.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}})
        stack.callback(kube.delete, "Node", "", self.name)
        room = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        kube.patch("Node", "", self.name, {"status": status}, subresource="status")
        kube.patch("Node", "", self.name, {"spec": {"taints": None}})  # that of a node which is not ready yet
        stack.enter_context(self._scheduler())

    def _scheduler(self) -> ExitStack:
        stack, folder = ExitStack(), self.bench.folder
        identity = Identity(f"scheduler-{self.bench.namespace}", ("system:masters",))
        configuration = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.bench.cluster.kubeconfig_for(identity))},
            "leaderElection": {"leaderElect": False},
            "profiles": [{"schedulerName": self.name}],
        }
        file = folder / "scheduler.yaml"
        file.write_text(yaml.safe_dump(configuration))
        programs = ensured([each for each in NODE_PROGRAMS if each.name == "kube-scheduler"])
        command = [programs["kube-scheduler"], f"--config={file}", "--secure-port=0"]
        stack.callback(end, spawn(command, folder / "scheduler.log"))
        return stack
