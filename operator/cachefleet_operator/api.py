"""The Kubernetes API as plain objects: one method for each verb the operator uses, two families of errors."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
from kubernetes.aio import client, config

MANAGER: Final = "cachefleet-operator"
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
MAX_MESSAGE: Final = 1024

_REFUSALS: Final = ("failed to create typed patch object", "Internal error occurred: failed calling webhook")
"""What is told with a status of 500 though it lasts: a field that is unknown, an admission webhook that is away."""

Object = dict[str, Any]

_PATHS: Final[Mapping[str, tuple[str, str]]] = {
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("v1", "events"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PrefixCachePool": ("cachefleet.io/v1alpha1", "prefixcachepools"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}


class ApiError(Exception):
    """A request that did not do what it asked for. ``status`` is HTTP's, 0 where none came back."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class RetryableError(ApiError):
    """Worth trying again: no answer, an overloaded or failing server, a conflict."""


class RefusedError(ApiError):
    """The same request will be refused again: it is invalid or not allowed."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """The identity of an object."""

    kind: str
    namespace: str
    name: str

    def manifest(self) -> Object:
        """The beginning of a manifest of this object."""
        metadata = {"name": self.name, "namespace": self.namespace}
        return {"apiVersion": _PATHS[self.kind][0], "kind": self.kind, "metadata": metadata}

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @classmethod
    def of(cls, manifest: Object) -> Ref:
        metadata = manifest["metadata"]
        return cls(manifest["kind"], metadata["namespace"], metadata["name"])


class Observer(Protocol):
    """Told of every request that was answered or given up."""

    def requested(self, verb: str, kind: str, status: int, seconds: float) -> None: ...


class Api:
    """A thin client; made by ``connect``."""

    def __init__(self, connection: client.ApiClient, observer: Observer, *, request_seconds: float) -> None:
        self._connection = connection
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

    async def list(self, kind: str, namespace: str, *, page: int, selector: str = "") -> list[Object] | None:
        """Objects of a kind, of one namespace or (empty) of all; None where the kind is not served.

        ``selector`` is of labels.
        """
        items: list[Object] = []
        token = ""
        while True:
            given = {"limit": str(page), "labelSelector": selector, "continue": token}
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
        ref = Ref.of(manifest)
        path = _path(Ref(ref.kind, ref.namespace, ""))
        return await self._request("create", ref.kind, path, body=manifest, query={"fieldManager": MANAGER})

    async def replace(self, manifest: Object) -> Object:
        """Update, on condition of the resourceVersion in the manifest."""
        ref = Ref.of(manifest)
        return await self._request("update", ref.kind, _path(ref), body=manifest, query={"fieldManager": MANAGER})

    async def apply(self, manifest: Object, *, subresource: str = "") -> Object:
        """Server-side apply: the fields in the manifest become ours, whoever had them."""
        ref = Ref.of(manifest)
        query = {"fieldManager": MANAGER, "force": "true"}
        path = _path(ref) + (f"/{subresource}" if subresource else "")
        return await self._request("patch", ref.kind, path, body=manifest, query=query)

    async def _request(
        self, verb: str, kind: str, path: str, *, body: Object | None = None, query: Mapping[str, str] | None = None
    ) -> Object:
        started = time.monotonic()
        status = 0
        try:
            status, text = await self._send(_METHODS[verb], path, body, query or {})
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise RetryableError(0, "NoAnswer", f"{type(error).__name__}: {error}") from error
        finally:
            self._observer.requested(verb, kind, status, time.monotonic() - started)
        if 200 <= status < 300:
            return _decoded(text)
        raise error_of(status, text)

    async def _send(self, method: str, path: str, body: Object | None, query: Mapping[str, str]) -> tuple[int, str]:
        kind = "application/apply-patch+yaml" if method == "PATCH" else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind}
        request = await self._connection.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        response = await self._connection.call_api(*request, _request_timeout=self._request_seconds)
        return response.status, (await response.read()).decode(errors="replace")  # type: ignore[no-untyped-call]


@asynccontextmanager
async def connect(kubeconfig: Path | None, observer: Observer, *, request_seconds: float) -> AsyncIterator[Api]:
    """A client with the pod's service account where there is one, else with a kubeconfig."""
    configuration = client.Configuration()
    if SERVICE_ACCOUNT.exists():
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        path = str(kubeconfig) if kubeconfig else None
        await config.load_kube_config(config_file=path, client_configuration=configuration)  # type: ignore[no-untyped-call]
    connection = client.ApiClient(configuration)
    try:
        yield Api(connection, observer, request_seconds=request_seconds)
    finally:
        await connection.close()  # type: ignore[no-untyped-call]


def error_of(status: int, text: str) -> ApiError:
    """The error that a refusing answer stands for. Status objects carry a reason and a message; proxies do not."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    reason = str(answer.get("reason") or "Unknown")
    message = str(answer.get("message") or text.strip())[:MAX_MESSAGE]
    retryable = status in {0, 401, 408, 409, 429} or (status >= 500 and not message.startswith(_REFUSALS))
    return (RetryableError if retryable else RefusedError)(status, reason, message)


_METHODS: Final = {"get": "GET", "list": "GET", "create": "POST", "update": "PUT", "patch": "PATCH"}


def _decoded(text: str) -> Object:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RetryableError(0, "NotJson", "the answer is not JSON") from error
    if not isinstance(value, dict):
        raise RetryableError(0, "NotAnObject", "the answer is not an object")
    return value


def _path(ref: Ref) -> str:
    version, plural = _PATHS[ref.kind]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    namespace = f"/namespaces/{ref.namespace}" if ref.namespace else ""
    return f"{root}{namespace}/{plural}" + (f"/{ref.name}" if ref.name else "")
