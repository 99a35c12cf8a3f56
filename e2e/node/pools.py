"""Pools of the tiny model on CPU, as a user would write them."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from e2e.node.site import Object, Site, until

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "cluster-tiny.yaml"
READY_SECONDS: Final = 900.0
"""Far more than a worker takes here: a busy machine decides no test."""


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool in a cluster."""

    site: Site
    namespace: str
    name: str

    def apply(self, changes: Mapping[str, Any] | None = None) -> None:
        """Make it as the example says; ``changes`` replace parts of the spec by dotted path."""
        self.site.apply(manifest(self.site, self.namespace, self.name, changes or {}))

    def patch(self, spec: Mapping[str, Any]) -> None:
        change = json.dumps({"spec": spec})
        self.site.kubectl("patch", "pcp", self.name, "-n", self.namespace, "--type=merge", "-p", change)

    def scale(self, replicas: int) -> None:
        """As a person or an autoscaler does it."""
        self.site.kubectl("scale", "pcp", self.name, "-n", self.namespace, f"--replicas={replicas}")

    def delete(self) -> None:
        self.site.kubectl("delete", "pcp", self.name, "-n", self.namespace, "--wait=true")
        until(lambda: not self.pods(), seconds=READY_SECONDS)

    def read(self) -> Object:
        return self.site.get("pcp", self.name, self.namespace)

    def condition(self, kind: str) -> Object:
        """One condition as it is now; empty where there is none yet."""
        found = (self.read().get("status") or {}).get("conditions") or ()
        return next((one for one in found if one["type"] == kind), {})

    def ready(self) -> None:
        """Wait until the pool as it is now (kubectl compares generations) serves as asked."""
        self.site.wait(f"pcp/{self.name}", self.namespace, "condition=Ready", seconds=READY_SECONDS)

    def becomes(self, kind: str, status: str, reason: str, *, seconds: float = 300.0) -> Object:
        """Wait for a condition; the condition."""
        reasons = f"{{.status.conditions[?(@.type=='{kind}')].reason}}"
        self.site.wait(f"pcp/{self.name}", self.namespace, f"jsonpath={reasons}={reason}", seconds=seconds)

        def look() -> Object | None:
            found = self.condition(kind)
            assert (found.get("status"), found.get("reason")) == (status, reason), found
            return found

        return until(look, seconds=seconds)

    def pods(self) -> list[Object]:
        """Its workers that are not on their way out."""
        found = self.site.list("pods", self.namespace, selector=f"cachefleet.io/pool={self.name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def starts(self) -> dict[str, int]:
        """Each container of each worker, and how often it was started anew."""
        return {
            f"{pod['metadata']['uid']}/{one['name']}": one["restartCount"]
            for pod in self.pods()
            for one in (*pod["status"]["containerStatuses"], *pod["status"]["initContainerStatuses"])
        }

    def events(self) -> list[Object]:
        """What was told of it."""
        found = self.site.list("events", self.namespace)
        return [event for event in found if event["involvedObject"]["name"] == self.name]


WEIGHTS: Final = "acme/tiny"
"""Repository of the image of the tiny model's weights, where the site has a registry."""
FOLDER: Final = "models/tiny"
"""Where they are in it."""
ADAPTER: Final = "sql"
"""Name of the adapter in the image ``ADAPTERS``, and its folder there."""
ADAPTERS: Final = "acme/tiny-adapters"
SECRET: Final = "registry"  # a name


def from_image(source: str) -> dict[str, Any]:
    """Changes of the example by which the engine has its weights of an image: nothing has to make them first."""
    pod = {"spec": {"imagePullSecrets": [{"name": SECRET}]}}
    return {"model.source": f"oci://{source}", "model.subPath": FOLDER, "podTemplate": pod}


def manifest(site: Site, namespace: str, name: str, changes: Mapping[str, Any]) -> Object:
    """The example in a namespace, with the site's images; ``changes`` replace parts of the spec by dotted path."""
    made: Object = copy.deepcopy(yaml.safe_load(EXAMPLE.read_text()))
    made["metadata"] = {"name": name, "namespace": namespace}
    spec = made["spec"]
    spec["engine"]["image"] = site.images.vllm
    spec["podTemplate"]["spec"]["initContainers"][0]["image"] = site.images.product
    for path, value in changes.items():
        *parents, last = path.split(".")
        target = spec
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = value
    return made
