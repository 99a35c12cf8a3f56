"""The API server as a test sees it: plain requests, plain objects, an administrator's rights."""

from __future__ import annotations

import http.client
import json
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any, Final, TypeVar
from urllib.parse import urlencode, urlsplit

from e2e.cluster import changes
from e2e.cluster.api_server import ADMIN, ApiServer

Object = dict[str, Any]
T = TypeVar("T")

_PATHS: Final[Mapping[str, str]] = {
    "APIService": "apis/apiregistration.k8s.io/v1/apiservices",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": "api/v1/{}configmaps",
    "CustomResourceDefinition": "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Deployment": "apis/apps/v1/{}deployments",
    "DeviceClass": "apis/resource.k8s.io/v1/deviceclasses",
    "DeviceTaintRule": "apis/resource.k8s.io/v1/devicetaintrules",
    "EndpointSlice": "apis/discovery.k8s.io/v1/{}endpointslices",
    "Event": "api/v1/{}events",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/{}horizontalpodautoscalers",
    "InferenceObjective": "apis/inference.networking.x-k8s.io/v1alpha2/{}inferenceobjectives",
    "InferencePool": "apis/inference.networking.k8s.io/v1/{}inferencepools",
    "Job": "apis/batch/v1/{}jobs",
    "Lease": "apis/coordination.k8s.io/v1/{}leases",
    "Namespace": "api/v1/namespaces",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}networkpolicies",
    "Node": "api/v1/nodes",
    "PersistentVolumeClaim": "api/v1/{}persistentvolumeclaims",
    "Pod": "api/v1/{}pods",
    "PodDisruptionBudget": "apis/policy/v1/{}poddisruptionbudgets",
    "PrefixCachePool": "apis/cachefleet.io/v1alpha1/{}prefixcachepools",
    "ReplicaSet": "apis/apps/v1/{}replicasets",
    "ResourceClaim": "apis/resource.k8s.io/v1/{}resourceclaims",
    "ResourceClaimTemplate": "apis/resource.k8s.io/v1/{}resourceclaimtemplates",
    "ResourceSlice": "apis/resource.k8s.io/v1/resourceslices",
    "Role": "apis/rbac.authorization.k8s.io/v1/{}roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/{}rolebindings",
    "ScaledObject": "apis/keda.sh/v1alpha1/{}scaledobjects",
    "Secret": "api/v1/{}secrets",
    "Service": "api/v1/{}services",
    "ServiceAccount": "api/v1/{}serviceaccounts",
    "ValidatingAdmissionPolicy": "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
_FOLLOWED: Final = ("PrefixCachePool", "Deployment", "Pod")
COMPANY_SECONDS: Final = 0.02
"""Changes come in company: it is looked at after the last of those that come within so long."""
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


class Refused(Exception):  # noqa: N818  # reads as what happened in `with pytest.raises(Refused)`
    """An answer other than success; ``message`` is what a person would see."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class Kube:
    """Connections are kept for the next request, of whichever thread: most of a request's cost is the handshake."""

    def __init__(self, cluster: ApiServer) -> None:
        pair = cluster.client_pair(ADMIN)
        self._context = ssl.create_default_context(cafile=str(cluster.ca))
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._address = urlsplit(cluster.url).netloc
        self._idle: deque[http.client.HTTPSConnection] = deque()

    def close(self) -> None:
        """Nothing stays open; the next request would begin anew."""
        while self._idle:
            self._idle.pop().close()

    def followed(self, namespace: str) -> AbstractContextManager[None]:
        """Within the block ``until`` looks as soon as a pool of a namespace or what comes of it has changed."""
        return changes.followed(self._connection, [path(kind, namespace) for kind in _FOLLOWED])

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        try:
            return self.request("GET", path(kind, namespace, name))
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def read(self, kind: str, namespace: str, name: str) -> Object:
        """The object, which must be there."""
        return self.request("GET", path(kind, namespace, name))

    def list(self, kind: str, namespace: str) -> list[Object]:
        items: list[Object] = self.request("GET", path(kind, namespace))["items"]
        return items

    def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        metadata = manifest["metadata"]
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return self.request("POST", path(manifest["kind"], metadata.get("namespace", "")), manifest, query=query)

    def apply(self, manifest: Object, *, manager: str) -> Object:
        metadata = manifest["metadata"]
        where = path(manifest["kind"], metadata.get("namespace", ""), metadata["name"])
        return self.request("PATCH", where, manifest, form=APPLY, query={"fieldManager": manager})

    def patch(self, kind: str, namespace: str, name: str, change: Object, *, subresource: str = "") -> Object:
        """A merge patch."""
        where = path(kind, namespace, name) + (f"/{subresource}" if subresource else "")
        return self.request("PATCH", where, change, form=MERGE)

    def delete(self, kind: str, namespace: str, name: str, *, policy: str = "Background") -> None:
        self.request("DELETE", path(kind, namespace, name), {"propagationPolicy": policy})

    def request(
        self,
        method: str,
        where: str,
        body: Object | None = None,
        *,
        form: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Object:
        """Any request; Refused where the answer is no success."""
        text = json.dumps(body) if body is not None else None
        target = f"/{where}" + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": form, "Accept": "application/json"}
        status, answer = self._answered(method, target, text, headers)
        if status >= 300:
            raise Refused(status, answer.get("message", ""))
        return answer

    def _answered(self, *request: Any) -> tuple[int, Object]:
        """On a connection that the server may have left since it was used, else on a new one."""
        while self._idle:
            with suppress(ConnectionError, ssl.SSLEOFError):
                return self._on(self._idle.pop(), *request)
        return self._on(self._connection(), *request)

    def _connection(self, timeout: float = 120) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(self._address, context=self._context, timeout=timeout)

    def _on(self, connection: http.client.HTTPSConnection, *request: Any) -> tuple[int, Object]:
        try:
            connection.request(*request)
            response = connection.getresponse()
            answer: Object = json.loads(response.read())
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:  # closed by now where the server said so
            self._idle.append(connection)
        return response.status, answer


def path(kind: str, namespace: str, name: str = "") -> str:
    """Where objects of a kind are, or one of them."""
    inside = f"namespaces/{namespace}/" if namespace else ""
    return _PATHS[kind].format(inside) + (f"/{name}" if name else "")


def until(check: Callable[[], T | None], *, seconds: float = 60.0, every: float = 0.25) -> T:
    """What ``check`` returns once it is truthy and raises no AssertionError, or its last word after so long.

    It looks after each change that is followed, and without one every so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        seen = changes.count()
        try:
            value = check()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        else:
            if value or time.monotonic() > deadline:
                assert value, "did not come true in time"
                return value
        changes.wait(seen, every)
        time.sleep(COMPANY_SECONDS)
