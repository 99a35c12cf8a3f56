"""The control plane's source of pools against a real API server and its endpoint slice controller."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from kubernetes import client, config

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource, WatchBounds
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_runtime.kubernetes import KubernetesClient
from e2e.cluster import rights
from e2e.cluster.api_server import ApiServer, Identity
from e2e.cluster.control_plane import ControlPlane
from e2e.cluster.kube import Kube
from tests.controlplane.pools.kube_server import pool
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.cluster

READER = Identity("pool-source-reader")
NODE = f"unserved-{uuid.uuid4().hex[:8]}"
"""Of this process alone."""
A, B = "demo-workers-1-aaaaa", "demo-workers-1-bbbbb"
KINDS = ("prefixcachepools", "endpointslices")
QUICK = WatchBounds(inactivity_seconds=5, request_seconds=5)


class Watching:
    """What a running source has given."""

    def __init__(self, source: KubePoolSource, metrics: Metrics) -> None:
        self.source = source
        self.metrics = metrics
        self.pictures: list[tuple[PoolView, ...]] = []

    async def run(self) -> None:
        async for picture in self.source.watch():
            self.pictures.append(picture)

    def pool(self, key: str) -> PoolView | None:
        last = self.pictures[-1] if self.pictures else ()
        return next((view for view in last if view.key == key), None)

    def workers(self, key: str) -> dict[str, bool]:
        view = self.pool(key)
        return {} if view is None else {worker.name: worker.ready for worker in view.workers}


@asynccontextmanager
async def watching(
    plane: ApiServer, *, who: Identity | None = None, namespaces: tuple[str, ...] = (), bounds: WatchBounds = QUICK
) -> AsyncIterator[Watching]:
    api = await KubernetesClient.connect(plane.kubeconfig if who is None else plane.kubeconfig_for(who))
    metrics = Metrics()
    watching = Watching(KubePoolSource(api, metrics=metrics, namespaces=namespaces, bounds=bounds), metrics)
    task = asyncio.create_task(watching.run())
    try:
        yield watching
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await api.close()


class Admin:
    """What people and the operator do in a namespace; each call waits for the API server."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)
        self._namespace = namespace
        self._kind = ("cachefleet.io", "v1alpha1", namespace, "prefixcachepools")

    async def apply(self, name: str, **spec: Any) -> None:
        body = pool(name, self._namespace, **spec)
        await asyncio.to_thread(self._custom.create_namespaced_custom_object, *self._kind, body)

    async def edit(self, name: str, **spec: Any) -> None:
        await asyncio.to_thread(self._custom.patch_namespaced_custom_object, *self._kind, name, {"spec": spec})

    async def delete(self, name: str) -> None:
        await asyncio.to_thread(self._custom.delete_namespaced_custom_object, *self._kind, name)

    async def service(self, pool_name: str) -> None:
        labels = {"cachefleet.io/pool": pool_name}
        spec = client.V1ServiceSpec(
            cluster_ip="None",
            selector=labels,
            publish_not_ready_addresses=False,
            ports=[client.V1ServicePort(port=8000)],
        )
        metadata = client.V1ObjectMeta(name=f"{pool_name}-workers", labels=labels)
        service = client.V1Service(metadata=metadata, spec=spec)
        await asyncio.to_thread(self._core.create_namespaced_service, self._namespace, service)

    async def pod(self, name: str, pool_name: str) -> None:
        """A pod on a node that nothing serves: nobody changes its status but the test."""
        spec = client.V1PodSpec(node_name=NODE, containers=[client.V1Container(name="engine", image="vllm:v1")])
        metadata = client.V1ObjectMeta(name=name, labels={"cachefleet.io/pool": pool_name})
        pod = client.V1Pod(metadata=metadata, spec=spec)
        await asyncio.to_thread(self._core.create_namespaced_pod, self._namespace, pod)

    async def status(self, name: str, *, ready: bool, address: str = "10.1.2.3") -> None:
        condition = {"type": "Ready", "status": str(ready)}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
        await asyncio.to_thread(self._core.patch_namespaced_pod_status, name, self._namespace, {"status": status})

    async def remove_pod(self, name: str) -> None:
        await asyncio.to_thread(self._core.delete_namespaced_pod, name, self._namespace, grace_period_seconds=0)


@pytest.fixture
def admin(api: client.ApiClient, namespace: str) -> Admin:
    return Admin(api, namespace)


@pytest.fixture(scope="module", autouse=True)
def node(api: client.ApiClient) -> Iterator[None]:
    """Slices take up no pod whose node is not there."""
    core = client.CoreV1Api(api)
    core.create_node(client.V1Node(metadata=client.V1ObjectMeta(name=NODE)))
    yield
    core.delete_node(NODE)


async def eventually(condition: Callable[[], bool]) -> None:
    await until(condition, seconds=60)


async def test_pools_come_change_and_go(cluster: ApiServer, admin: Admin, namespace: str) -> None:
    await admin.apply("first")
    async with watching(cluster, namespaces=(namespace,)) as seen:
        await eventually(lambda: seen.pool(f"{namespace}/first") is not None)
        assert len(seen.pictures) == 1
        await admin.apply("second", replicas=2)
        await eventually(lambda: seen.pool(f"{namespace}/second") is not None)
        await admin.edit("second", replicas=5)
        await eventually(lambda: (seen.pool(f"{namespace}/second") or seen.pictures[0][0]).pool.spec.replicas == 5)
        second = seen.pool(f"{namespace}/second")
        assert second is not None
        assert (second.pool.metadata.generation, bool(second.pool.metadata.uid)) == (2, True)
        await admin.delete("first")
        await eventually(lambda: seen.pool(f"{namespace}/first") is None)
        assert value(seen.metrics, "pool_source_errors_total", kind="invalid") == 0


async def test_workers_follow_their_pods(controllers: ApiServer, admin: Admin, namespace: str) -> None:
    key = f"{namespace}/demo"
    await admin.apply("demo")
    await admin.service("demo")
    async with watching(controllers) as seen:
        await admin.pod(A, "demo")
        await admin.status(A, ready=False)
        await eventually(lambda: seen.workers(key) == {A: False})
        await admin.status(A, ready=True)
        await eventually(lambda: seen.workers(key) == {A: True})
        view = seen.pool(key)
        assert view is not None
        assert (view.workers[0].url, view.workers[0].agent) == ("http://10.1.2.3:8000", "http://10.1.2.3:8082")
        await admin.pod(B, "demo")
        await admin.status(B, ready=True, address="10.1.2.4")
        await eventually(lambda: seen.workers(key) == {A: True, B: True})
        await admin.remove_pod(A)
        await eventually(lambda: seen.workers(key) == {B: True})


async def test_workers_stay_where_their_service_loses_its_label_or_is_deleted(
    controllers: ApiServer, admin: Admin, namespace: str, kube: Kube
) -> None:
    key = f"{namespace}/demo"
    await admin.apply("demo")
    await admin.service("demo")
    async with watching(controllers) as seen:
        await admin.pod(A, "demo")
        await admin.status(A, ready=True)
        await eventually(lambda: seen.workers(key) == {A: True})
        slices = partial(kube.list, "EndpointSlice", namespace)
        known = len(seen.pictures)
        kube.patch("Service", namespace, "demo-workers", {"metadata": {"labels": {"cachefleet.io/pool": None}}})
        await eventually(lambda: not any("cachefleet.io/pool" in each["metadata"]["labels"] for each in slices()))
        await admin.apply("other")
        await eventually(lambda: seen.pool(f"{namespace}/other") is not None)
        kube.delete("Service", namespace, "demo-workers")
        await eventually(lambda: slices() == [])
        await admin.service("demo")
        await admin.pod(B, "demo")
        await admin.status(B, ready=True, address="10.1.2.4")
        await eventually(lambda: seen.workers(key) == {A: True, B: True})
        pictures = [view for each in seen.pictures[known:] for view in each if view.key == key]
        assert all(A in {worker.name for worker in view.workers if worker.ready} for view in pictures)


async def asked(plane: ApiServer, who: Identity) -> Counter[tuple[str, str]]:
    """How often a user did what with which resource; a watch counts from its beginning."""
    requests = await asyncio.to_thread(plane.requests, who.name)
    mine = {request["auditID"]: request for request in requests if request["user"]["username"] == who.name}
    return Counter((request["verb"], request.get("objectRef", {}).get("resource", "")) for request in mine.values())


async def test_an_idle_watch_goes_on_without_listing_again(
    cluster: ApiServer, api: client.ApiClient, kube: Kube, namespace: str
) -> None:
    allow_reading(api, READER)
    rights.wait_for_right(kube, READER.name, "cachefleet.io", "prefixcachepools", "list")
    async with watching(cluster, who=READER, bounds=replace(QUICK, request_seconds=120)) as seen:
        await eventually(lambda: bool(seen.pictures))
        found = await asked(cluster, READER)
        async with asyncio.timeout(120):
            while min(found["watch", kind] for kind in KINDS) < 3:
                await asyncio.sleep(0.5)
                found = await asked(cluster, READER)
        assert seen.source.problem == ""
    assert {verb for verb, _ in found} == {"list", "watch"}, "it reads, and nothing more"
    assert sum(count for (verb, _), count in found.items() if verb == "list") == 2


async def test_without_permission_it_says_so_and_recovers(
    cluster: ApiServer, api: client.ApiClient, namespace: str
) -> None:
    stranger = Identity("pool-source-stranger")
    async with watching(cluster, who=stranger, bounds=replace(QUICK, longest_pause_seconds=1)) as seen:
        await eventually(lambda: "403" in seen.source.problem)
        assert seen.pictures == []
        allow_reading(api, stranger)
        await eventually(lambda: bool(seen.pictures))
        assert seen.source.problem == ""


async def test_a_frozen_api_server_is_noticed_and_caught_up_with(own: ControlPlane) -> None:
    with config.new_client_from_config(str(own.kubeconfig)) as api:  # type: ignore[no-untyped-call]
        admin = Admin(api, "default")
        await admin.apply("demo")
        async with watching(own) as seen:
            await eventually(lambda: seen.pool("default/demo") is not None)
            with own.frozen("kube-apiserver"):
                await eventually(lambda: "NoAnswer" in seen.source.problem)
                assert seen.pool("default/demo") is not None
            await admin.apply("other")
            await eventually(lambda: seen.pool("default/other") is not None)
            await eventually(lambda: seen.source.problem == "")
            assert value(seen.metrics, "pool_source_errors_total", kind="unreachable") >= 1


def allow_reading(api: client.ApiClient, who: Identity) -> None:
    rules = [
        client.V1PolicyRule(api_groups=["cachefleet.io"], resources=["prefixcachepools"], verbs=["list", "watch"]),
        client.V1PolicyRule(api_groups=["discovery.k8s.io"], resources=["endpointslices"], verbs=["list", "watch"]),
    ]
    rbac = client.RbacAuthorizationV1Api(api)
    metadata = client.V1ObjectMeta(name=who.name)
    rbac.create_cluster_role(client.V1ClusterRole(metadata=metadata, rules=rules))
    role = client.V1RoleRef(api_group="rbac.authorization.k8s.io", kind="ClusterRole", name=who.name)
    subject = client.RbacV1Subject(api_group="rbac.authorization.k8s.io", kind="User", name=who.name)
    rbac.create_cluster_role_binding(client.V1ClusterRoleBinding(metadata=metadata, role_ref=role, subjects=[subject]))
