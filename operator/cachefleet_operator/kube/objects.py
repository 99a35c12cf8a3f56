"""Reads and writes Kubernetes objects by kind, namespace and name: one method for each verb the operator uses."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cachefleet_runtime.kubernetes import SERVICE_ACCOUNT, JsonPatch, KubernetesClient, Object, RefusedError, read

MANAGER: Final = "cachefleet-operator"

_PATHS: Final[Mapping[str, tuple[str, str]]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "DeviceClass": ("resource.k8s.io/v1", "deviceclasses"),
    "DeviceTaintRule": ("resource.k8s.io/v1", "devicetaintrules"),
    "Event": ("v1", "events"),
    "HorizontalPodAutoscaler": ("autoscaling/v2", "horizontalpodautoscalers"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PrefixCachePool": ("cachefleet.io/v1alpha1", "prefixcachepools"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": ("resource.k8s.io/v1", "resourceslices"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Reference to an object: kind, namespace and name."""

    kind: str
    namespace: str
    name: str

    def manifest(self) -> Object:
        """A manifest with apiVersion, kind and metadata only."""
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": _PATHS[self.kind][0], "kind": self.kind, "metadata": metadata}

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @classmethod
    def of(cls, manifest: Object) -> Ref:
        """The reference of a manifest's object."""
        metadata = manifest["metadata"]
        return cls(manifest["kind"], metadata["namespace"], metadata["name"])


class Observer(Protocol):
    """Called after each request; ``status`` is 0 where no answer came."""

    def requested(self, verb: str, kind: str, status: int, seconds: float) -> None: ...


class Api:
    """The API verbs that the operator uses; errors are KubernetesErrors. Made by ``connect``."""

    def __init__(self, client: KubernetesClient, observer: Observer, *, request_seconds: float) -> None:
        self._client = client
        self._observer = observer
        self._request_seconds = request_seconds

    async def get(self, ref: Ref) -> Object | None:
        """The object, or None where there is none."""
        try:
            return await self._request("get", ref.kind, _path(ref))
        except RefusedError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str, *, page: int, selector: str = "", fields: str = ""
    ) -> list[Object] | None:
        """Objects of a kind, of one namespace or (empty) of all; None where the kind is not served.

        ``page`` is the number of objects per request, ``selector`` a label selector, ``fields`` a field
        selector.
        """
        items: list[Object] = []
        token = ""
        while True:
            given = {"limit": str(page), "labelSelector": selector, "fieldSelector": fields, "continue": token}
            query = {name: text for name, text in given.items() if text}
            try:
                found = await self._request("list", kind, _path(Ref(kind, namespace, "")), query=query)
            except RefusedError as error:
                if error.status == 404:
                    return None
                raise
            items += found["items"]
            token = found["metadata"].get("continue") or ""
            if not token:
                return items

    async def create(self, manifest: Object) -> Object:
        """Create an object; RetryableError (AlreadyExists) where there is one of that name."""
        ref = Ref.of(manifest)
        path = _path(Ref(ref.kind, ref.namespace, ""))
        return await self._request("create", ref.kind, path, body=manifest, query={"fieldManager": MANAGER})

    async def replace(self, manifest: Object) -> Object:
        """Update, on condition of the resourceVersion in the manifest."""
        ref = Ref.of(manifest)
        return await self._request("update", ref.kind, _path(ref), body=manifest, query={"fieldManager": MANAGER})

    async def delete(self, manifest: Object) -> Object:
        """Delete an object, on condition of the uid in the manifest."""
        ref, uid = Ref.of(manifest), manifest["metadata"]["uid"]
        return await self._request("delete", ref.kind, _path(ref), body={"preconditions": {"uid": uid}})

    async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Server-side apply, forced: the fields in the manifest become this manager's, whoever managed them.

        ``dry_run``: the API server and its webhooks check it, and nothing is kept.
        """
        ref = Ref.of(manifest)
        query = {"fieldManager": MANAGER, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        path = _path(ref) + (f"/{subresource}" if subresource else "")
        return await self._request("patch", ref.kind, path, body=manifest, query=query)

    async def annotate(self, manifest: Object) -> Object:
        """Add a manifest's labels and annotations to an object that has some, on condition of the uid in it.

        Unlike by an apply, those that were added before and are not in the manifest stay.
        """
        ref, metadata = Ref.of(manifest), manifest["metadata"]
        operations: JsonPatch = [{"op": "test", "path": "/metadata/uid", "value": metadata["uid"]}]
        for part in ("labels", "annotations"):
            for name, value in metadata.get(part, {}).items():
                path = f"/metadata/{part}/{name.replace('~', '~0').replace('/', '~1')}"
                operations.append({"op": "add", "path": path, "value": value})
        return await self._request("patch", ref.kind, _path(ref), body=operations, query={"fieldManager": MANAGER})

    async def scale(self, manifest: Object) -> Object:
        """Set replicas to those in the manifest by the subresource scale, on condition of the uid in it."""
        ref = Ref.of(manifest)
        operations: JsonPatch = [
            {"op": "test", "path": "/metadata/uid", "value": manifest["metadata"]["uid"]},
            {"op": "add", "path": "/spec/replicas", "value": manifest["spec"]["replicas"]},
        ]
        path, query = f"{_path(ref)}/scale", {"fieldManager": MANAGER}
        return await self._request("patch", ref.kind, path, body=operations, query=query)

    async def rewrite(self, manifest: Object) -> Object:
        """Replace the parts of an object that the manifest has besides its metadata, remove those that are None there;
        on condition of its resourceVersion. Unlike by an apply, fields that others manage go, too.
        """
        ref, version = Ref.of(manifest), manifest["metadata"]["resourceVersion"]
        parts = {name: value for name, value in manifest.items() if name not in ("apiVersion", "kind", "metadata")}
        operations: JsonPatch = [{"op": "replace", "path": "/metadata/resourceVersion", "value": version}]
        for name, value in parts.items():
            there = {"op": "add", "path": f"/{name}", "value": value}
            operations.append({"op": "remove", "path": f"/{name}"} if value is None else there)
        return await self._request("patch", ref.kind, _path(ref), body=operations, query={"fieldManager": MANAGER})

    async def _request(
        self,
        verb: str,
        kind: str,
        path: str,
        *,
        body: Object | JsonPatch | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Object:
        started = time.monotonic()
        status = 0
        try:
            status, text = await self._client.exchange(
                _METHODS[verb], path, query=query, body=body, seconds=self._request_seconds
            )
        finally:
            self._observer.requested(verb, kind, status, time.monotonic() - started)
        return read(status, text)


@asynccontextmanager
async def connect(kubeconfig: Path | None, observer: Observer, *, request_seconds: float) -> AsyncIterator[Api]:
    """An ``Api`` as the pod's service account where there is one, else by kubeconfig; closed after the block."""
    client = await KubernetesClient.connect(None if SERVICE_ACCOUNT.exists() else kubeconfig)
    try:
        yield Api(client, observer, request_seconds=request_seconds)
    finally:
        await client.close()


_METHODS: Final = {"delete": "DELETE", "get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}


def _path(ref: Ref) -> str:
    version, plural = _PATHS[ref.kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = f"/namespaces/{ref.namespace}" if ref.namespace else ""
    return f"{root}{namespace}/{plural}" + (f"/{ref.name}" if ref.name else "")
