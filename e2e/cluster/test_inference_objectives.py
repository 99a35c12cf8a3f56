"""InferenceObjectives of the Gateway API Inference Extension, by its own CRD, on a real API server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.inference_objectives import GROUP, InferenceObjectives
from cachefleet_runtime.kubernetes import KubernetesClient
from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.kube import Kube, Object, Refused
from tests.controlplane.waiting import until

pytestmark = pytest.mark.cluster

CRD: Final[Object] = yaml.safe_load((Path(__file__).parent / "crds" / "inferenceobjectives-v1.5.0.yaml").read_text())
KIND: Final = "InferenceObjective"


def objective(namespace: str, name: str, priority: int | None, **ref: object) -> Object:
    spec: Object = {"poolRef": {"name": "demo", **ref}} | ({} if priority is None else {"priority": priority})
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": f"{GROUP}/v1alpha2", "kind": KIND, "metadata": metadata, "spec": spec}


def reader(kube: Kube, namespace: str) -> Identity:
    """Who may do what the chart grants the control plane, and no more."""
    who, group = Identity(f"objectives-{namespace}"), "rbac.authorization.k8s.io"
    metadata = {"name": who.name, "namespace": namespace}
    rules = [{"apiGroups": [GROUP], "resources": ["inferenceobjectives"], "verbs": ["list", "watch"]}]
    about = {"apiVersion": f"{group}/v1", "metadata": metadata}
    kube.create({**about, "kind": "Role", "rules": rules})
    role = {"apiGroup": group, "kind": "Role", "name": who.name}
    user = {"apiGroup": group, "kind": "User", "name": who.name}
    kube.create({**about, "kind": "RoleBinding", "roleRef": role, "subjects": [user]})
    rights.wait_for_right(kube, who.name, GROUP, "inferenceobjectives", "watch", namespace=namespace)
    return who


def made(kube: Kube, manifest: Object) -> bool:
    """Whether the object is there now; it is created once its kind is served."""
    with suppress(Refused, ValueError):  # what is not served is answered in plain text
        kube.create(manifest)
        return True
    return False


async def test_they_are_read_from_when_their_crd_is_there(cluster: ApiServer, kube: Kube, namespace: str) -> None:
    who = reader(kube, namespace)
    api = await KubernetesClient.connect(cluster.kubeconfig_for(who))
    found = InferenceObjectives()
    work = found.follow(api, metrics=Metrics(), namespaces=(namespace,), missing_seconds=0.2)
    following = asyncio.create_task(work)
    try:
        await asyncio.sleep(1)
        assert not following.done()
        assert not found
        kube.create(CRD)
        await until(lambda: made(kube, objective(namespace, "chat", 10)))
        kube.create(objective(namespace, "plain", None))
        kube.create(objective(namespace, "elsewhere", 5, kind="Service", group=""))
        await until(lambda: found.priority(namespace, "plain", ["demo"]) == 0)
        assert found.priority(namespace, "chat", ["demo"]) == 10
        assert found.priority(namespace, "elsewhere", ["demo"]) is None
        kube.patch(KIND, namespace, "chat", {"spec": {"priority": -3}})
        await until(lambda: found.priority(namespace, "chat", ["demo"]) == -3)
        kube.delete(KIND, namespace, "chat")
        await until(lambda: found.priority(namespace, "chat", ["demo"]) is None)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await api.close()
