"""containerd with a root folder of our own: images stay there from one node to the next, containers do not."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from e2e.cluster.binaries import cache_root
from e2e.node import network
from e2e.node.images import Image
from e2e.node.namespaces import Namespaces

START_SECONDS: Final = 180.0
CONFIG: Final = """
version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri"]
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{registries}"
[plugins."io.containerd.cri.v1.runtime"]
  # Lowering a process's score is not permitted in every container; without this no sandbox starts there.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  cdi_spec_dirs = ["{cdi}"]
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "{shim}"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{plugins}"]
    conf_dir = "{cni}"
"""


class ContainerdError(RuntimeError):
    """containerd did not come up or refused something; the message ends with its words."""


class Containerd:
    """One containerd, which ends with its namespaces; ``socket`` is where a kubelet finds it.

    ``registries`` is where it looks for how to reach a registry, ``cdi`` for what claimed devices are in a container.
    """

    def __init__(self, folder: Path, programs: Mapping[str, Path], pause: Image, inside: Namespaces) -> None:
        self._programs = programs
        self._inside = inside
        self._root = cache_root() / "node" / "containerd-2"
        self.registries, self.cdi = folder / "registries", folder / "cdi"
        self._folder = folder
        self._pause = pause
        self.socket = folder / "containerd.sock"
        self.log = folder / "containerd.log"

    def start(self) -> None:
        """Up, with nothing of an earlier life but images."""
        # What the kubelet's interface remembers of containers that are no more.
        for kind in ("containers", "sandboxes"):
            shutil.rmtree(self._root / "io.containerd.grpc.v1.cri" / kind, ignore_errors=True)
        config = self._folder / "containerd.toml"
        places = {"root": self._root, "state": self._folder / "containerd", "socket": self.socket}
        places |= {
            "plugins": network.PLUGINS,
            "cni": self._folder / "cni",
            "registries": self.registries,
            "cdi": self.cdi,
        }
        shim = self._programs["containerd-shim-runc-v2"]
        config.write_text(CONFIG.format(pause=self._pause.reference, shim=shim, **places))
        self._process = self._inside.spawn([self._programs["containerd"], "--config", config], self.log)
        deadline = time.monotonic() + START_SECONDS
        while self._ctr("version").returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ContainerdError(f"containerd did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.1)
        self.clear()

    def stop(self) -> None:
        """All containers and then containerd itself."""
        self.clear()
        self._inside.end(self._process)

    def clear(self) -> None:
        """Kill and remove every container."""
        for task in self._names("tasks"):
            self._ctr("tasks", "delete", "--force", task)
        for container in self._names("containers"):
            self._ctr("containers", "delete", container)

    def load(self, image: Image, save: Callable[[Path], None]) -> None:
        """Import an image where it is not there yet, from the file that ``save`` writes."""
        if not self.has(image):
            self._import(image, save)
        # As manifests name it that are not written for one build. Not "latest", which the kubelet would pull.
        self._ctr("images", "tag", "--force", image.reference, f"{image.repository}:dev")

    def _import(self, image: Image, save: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(dir=self._root) as folder:
            archive = Path(folder) / "image.tar"
            save(archive)
            done = self._ctr("images", "import", str(archive))
        if done.returncode or not self.has(image):
            raise ContainerdError(f"{image.reference} could not be imported:\n{done.stdout}{done.stderr}")

    def has(self, image: Image) -> bool:
        return image.reference in self._names("images")

    def keep_only(self, images: set[str]) -> None:
        """Remove images of ours that are none of these."""
        for reference in self._names("images"):
            if reference not in images and not reference.endswith(":dev"):
                self._ctr("images", "delete", reference)

    def _names(self, kind: str) -> list[str]:
        return self._ctr(kind, "list", "--quiet").stdout.split()

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._programs["ctr"]), "--address", str(self.socket), "--namespace", "k8s.io", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)
