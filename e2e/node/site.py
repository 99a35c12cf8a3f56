"""The cluster that the tests run in: a node of our own, or (KUBECONFIG and CACHEFLEET_E2E_IMAGES given) anybody's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from e2e.cluster import kube
from e2e.node.devices import DeviceDriver
from e2e.node.registry import Registry

Object = dict[str, Any]
T = TypeVar("T")

CHART: Final = Path(__file__).parents[2] / "charts" / "cachefleet"
RELEASE: Final = "cachefleet"
NAMESPACE: Final = "cachefleet-system"
LOOK_SECONDS: Final = 0.5


class CommandError(RuntimeError):
    """A command failed; the message is what it said."""


@dataclass(frozen=True, slots=True)
class Images:
    """References of what pods are made from."""

    product: str
    vllm: str

    @classmethod
    def below(cls, prefix: str) -> Images:
        """``PREFIX/cachefleet:dev`` and ``PREFIX/vllm-cpu:dev``."""
        return cls(f"{prefix}/cachefleet:dev", f"{prefix}/vllm-cpu:dev")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster as an administrator of it sees it."""

    kubeconfig: Path
    programs: dict[str, Path]
    images: Images
    requests: Callable[[], list[Object]] | None
    """The API server's audit log; None where it cannot be had."""
    registry: Registry | None = None
    """Where weights are in images; None where there is none."""
    families: tuple[str, ...] = ()
    """IP families of pods, the cluster's own first; empty where nobody knows."""
    driver: DeviceDriver | None = None
    """What publishes devices on the node; None where that cannot be had."""

    def kubectl(self, *arguments: str, given: str = "") -> str:
        """What kubectl prints. CommandError where it fails."""
        return run([*self.command("kubectl"), *arguments], given)

    def helm(self, *arguments: str) -> str:
        """What Helm prints. CommandError where it fails."""
        return run([*self.command("helm"), *arguments])

    def command(self, program: str) -> list[str]:
        """The beginning of a command line."""
        return [str(self.programs[program]), f"--kubeconfig={self.kubeconfig}"]

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Object:
        """One object."""
        found: Object = json.loads(self.kubectl("get", kind, name, "-n", namespace, "-o", "json"))
        return found

    def list(self, kind: str, namespace: str = NAMESPACE, *, selector: str = "") -> list[Object]:
        """Objects of a kind."""
        where = ["-n", namespace] if namespace else ["-A"]
        chosen = ["-l", selector] if selector else []
        items: list[Object] = json.loads(self.kubectl("get", kind, *where, *chosen, "-o", "json"))["items"]
        return items

    def apply(self, *manifests: Object) -> None:
        """As a user does it."""
        self.kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))

    def wait(self, what: str, namespace: str, condition: str, *, seconds: float) -> None:
        """Until an object is so, as ``kubectl wait --for`` takes it; CommandError when that takes longer."""
        self.kubectl("wait", what, "-n", namespace, f"--for={condition}", f"--timeout={seconds:.0f}s")

    def install(self, *options: str, chart: Path = CHART) -> None:
        """Install the chart or upgrade it, and wait until what it makes is up."""
        repository, tag = self.images.product.rsplit(":", 1)
        image = ["--set", f"image.repository={repository}", "--set", f"image.tag={tag}"]
        both = ["--set", "ipFamilyPolicy=PreferDualStack"] if len(self.families) > 1 else []
        where = ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "5m"]
        self.helm("upgrade", "--install", RELEASE, str(chart), *where, *image, *both, *options)


def run(command: list[str], given: str = "") -> str:
    """What a command prints. CommandError where it fails."""
    done = subprocess.run(command, input=given or None, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def until(check: Callable[[], T | None], *, seconds: float) -> T:
    """As ``e2e.cluster.kube.until``, less often: each look starts a program, and engines that start need the cores."""
    return kube.until(check, seconds=seconds, every=LOOK_SECONDS)
