"""Devices that are not there, of a DRA driver that is: registered at the kubelet, with a ResourceSlice and CDI specs.

What a container has of one is an environment variable.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.node.kubelet import NODE
from e2e.node.namespaces import Namespaces

Object = dict[str, Any]

DRIVER: Final = "stand-in.example.com"
PRODUCT: Final = "Stand-in for an accelerator"
DEVICE_CLASS: Final[Object] = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "stand-in"},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
SELECTOR: Final = f"device.attributes['{DRIVER}'].productName == '{PRODUCT}'"
"""What a pool may ask of such a device."""


@dataclass(frozen=True, slots=True)
class DeviceDriver:
    """The driver of a node, which runs inside its namespaces while ``running``."""

    binary: Path
    folder: Path
    kubelet: Path
    cdi: Path
    kubeconfig: Path
    inside: Namespaces

    @contextmanager
    def running(self) -> Iterator[None]:
        """Registered, and without devices at first."""
        self.publish()
        process = self.inside.spawn(self._command(), self.folder / "devicedriver.log")
        try:
            yield
        finally:
            self._end(process)

    def publish(self, *memories: str, taints: Sequence[Object] = ()) -> None:
        """Have a device for each memory, a quantity, all with these taints, in place of what there was before."""
        devices = [
            {
                "name": f"stand-in-{number}",
                "attributes": {"productName": {"string": PRODUCT}, "index": {"int": number}},
                "capacity": {"memory": {"value": memory}},
                "taints": list(taints),
            }
            for number, memory in enumerate(memories)
        ]
        draft = self._devices.with_suffix(".draft")
        draft.write_text(json.dumps(devices))
        draft.replace(self._devices)  # whole at once: the driver reads it meanwhile

    def prepared(self) -> set[str]:
        """Uids of the claims that are prepared."""
        return {path.stem.removeprefix(f"{DRIVER}-") for path in self.cdi.glob(f"{DRIVER}-*.json")}

    @property
    def _devices(self) -> Path:
        return self.folder / "devices.json"

    def _command(self) -> list[object]:
        flags = {
            "driver": DRIVER,
            "node": NODE,
            "kubeconfig": self.kubeconfig,
            "kubelet": self.kubelet,
            "cdi": self.cdi,
            "devices": self._devices,
        }
        return [self.binary, *(f"--{name}={value}" for name, value in flags.items())]

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        ended = process.poll()
        self.inside.end(process)
        said = (self.folder / "devicedriver.log").read_text(errors="replace")
        assert ended is None, f"the driver ended with {ended}:\n{said[-2000:]}"
