"""What a test of the operator works at: a namespace, a user for operators, pools, and what became of them."""

from __future__ import annotations

import re
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube, Object, until
from e2e.cluster.operator_process import OperatorProcess

CHILDREN: Final = {
    "Secret": "worker-keys",
    "ServiceAccount": "worker",
    "ConfigMap": "policy",
    "Service": "workers",
    "PodDisruptionBudget": "workers",
    "NetworkPolicy": "workers",
    "Deployment": "workers",
}
SPEC: Final[Object] = {
    "model": {"name": "tiny", "source": "org/tiny", "weightsMiB": 100, "kvBytesPerToken": 1024},
    "replicas": 2,
    "engine": {"maxModelLen": 2048, "image": "example.org/vllm:1"},
    "device": {"memoryMiB": 8192},
    "prefixCache": {"budgetMiB": 512},
}
_TRANSIENT: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")


@dataclass(frozen=True)
class Bench:
    """One namespace and everything to try an operator there."""

    cluster: ApiServer
    kube: Kube
    namespace: str
    identity: Identity
    folder: Path
    stack: ExitStack

    def operator(self, **settings: Any) -> OperatorProcess:
        """Start one. ``server`` stands in for the API server, ``identity`` for the usual user, ``account`` for both."""
        server, identity = settings.pop("server", None), settings.pop("identity", self.identity)
        kubeconfig = self.cluster.kubeconfig_for(identity, server=server)
        process = OperatorProcess(kubeconfig, self.folder / "operator.log", namespace=self.namespace, **settings)
        return self.stack.enter_context(process)

    def pool(self, name: str = "demo", **spec: Any) -> Object:
        """A manifest; ``spec`` is laid over SPEC one level deep."""
        merged = deepcopy(SPEC)
        for field, value in spec.items():
            merged[field] = {**merged.get(field, {}), **value} if isinstance(value, dict) else value
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "cachefleet.io/v1alpha1", "kind": "PrefixCachePool", "metadata": metadata, "spec": merged}

    def create(self, name: str = "demo", **spec: Any) -> Object:
        return self.kube.create(self.pool(name, **spec))

    def edit(self, name: str = "demo", **spec: Any) -> Object:
        """Change parts of a pool's spec."""
        return self.kube.patch("PrefixCachePool", self.namespace, name, {"spec": spec})

    def child(self, kind: str, name: str = "demo") -> Object | None:
        return self.kube.get(kind, self.namespace, f"{name}-{CHILDREN[kind]}")

    def conditions(self, name: str = "demo") -> dict[str, Object]:
        """By type; empty while there is no status about the pool as it is."""
        pool = self.kube.read("PrefixCachePool", self.namespace, name)
        status = pool.get("status", {})
        if status.get("observedGeneration") != pool["metadata"]["generation"]:
            return {}
        return {condition["type"]: condition for condition in status["conditions"]}

    def condition(self, kind: str, name: str = "demo") -> Object | None:
        """One of them; None while there is none about the pool as it is."""
        return self.conditions(name).get(kind)

    def reason(self, kind: str, name: str = "demo") -> str:
        """The reason of one of them, "" while there is none about the pool as it is."""
        return str((self.condition(kind, name) or {}).get("reason", ""))

    def events(self, name: str = "demo") -> list[Object]:
        """The operator's, about a pool."""
        found = self.kube.list("Event", self.namespace)
        return [
            event
            for event in found
            if event["involvedObject"]["kind"] == "PrefixCachePool" and event["involvedObject"]["name"] == name
        ]

    def settled(self, name: str = "demo") -> Object:
        """Wait until a pool's pods are made and told of, and give the pool. No kubelet: that is as far as it goes."""
        return until(lambda: self._settled(name))

    def _settled(self, name: str) -> Object:
        pool, deployment = self.kube.read("PrefixCachePool", self.namespace, name), self.child("Deployment", name)
        assert deployment is not None
        assert deployment["status"].get("observedGeneration") == deployment["metadata"]["generation"]
        assert deployment["spec"]["replicas"] == pool["spec"]["replicas"]
        assert deployment["status"].get("replicas", 0) >= pool["spec"]["replicas"]
        assert pool.get("status", {}).get("observedGeneration") == pool["metadata"]["generation"]
        assert pool["status"]["replicas"] == deployment["status"].get("replicas", 0)
        return pool

    def essence(self, name: str = "demo") -> Object:
        """Everything that belongs to a pool, without what differs between two equal histories."""
        found: Object = {kind: _plain(self.child(kind, name)) for kind in CHILDREN}
        pool = self.kube.read("PrefixCachePool", self.namespace, name)
        found["status"] = _plain({"metadata": {}, **pool.get("status", {})})
        found["status"]["workers"] = sorted(each["state"] for each in found["status"].get("workers", ()))
        found["pods"] = len(
            [pod for pod in self.kube.list("Pod", self.namespace) if "deletionTimestamp" not in pod["metadata"]]
        )
        found["events"] = sorted((event["type"], event["reason"], event["message"]) for event in self.events(name))
        text: Object = _renamed(found, self.namespace)
        return text

    def writes(self) -> list[str]:
        """What operators wrote so far, Leases left out."""
        return rights.writes(self.cluster.requests(self.identity.name), self.identity)


def _plain(value: Object | None) -> Object | None:
    if value is None:
        return None
    value = deepcopy(value)
    for name in _TRANSIENT:
        value["metadata"].pop(name, None)
    for owner in value["metadata"].get("ownerReferences", ()):
        owner["uid"] = ""
    value.pop("status", None)  # of a Deployment: its controller's words, and they depend on when it looked
    value.pop("observedGeneration", None)
    for condition in value.get("conditions", ()):
        condition.pop("lastTransitionTime")
        condition.pop("observedGeneration")
    return value


def _renamed(value: Any, namespace: str) -> Any:
    """Two namespaces' objects become comparable: the name, and what is derived from it."""
    match value:
        case dict():
            # Keys, digests and the drain's path follow from the namespace's name and the pool's uid.
            hidden = (
                *("cachefleet.io/applied", "cachefleet.io/template", "cachefleet.io/keys"),
                *("worker.key", "index.key", "policy.json", "uid"),
            )
            return {k: "..." if k in hidden else _renamed(v, namespace) for k, v in value.items()}
        case list():
            return [_renamed(each, namespace) for each in value]
        case str():
            return re.sub(r"/drain/[0-9a-f]+", "/drain/...", value.replace(namespace, "NAMESPACE"))
    return value
