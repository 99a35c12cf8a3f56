"""The rights an operator needs, and the rights it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from e2e.cluster.api_server import Identity
from e2e.cluster.kube import Kube, Object, until

ROLE: Final = "cachefleet-operator"
RIGHTS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("", "configmaps"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("", "events"): frozenset({"create", "list"}),
    ("", "pods"): frozenset({"list", "patch", "watch"}),
    ("", "secrets"): frozenset({"create", "get", "update"}),
    ("", "serviceaccounts"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("", "services"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("autoscaling", "horizontalpodautoscalers"): frozenset({"list"}),
    ("apps", "deployments"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("apps", "replicasets"): frozenset({"list"}),
    ("apps", "replicasets/scale"): frozenset({"patch"}),
    ("cachefleet.io", "prefixcachepools"): frozenset({"get", "list", "watch"}),
    ("cachefleet.io", "prefixcachepools/status"): frozenset({"patch"}),
    ("networking.k8s.io", "networkpolicies"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("policy", "poddisruptionbudgets"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("resource.k8s.io", "deviceclasses"): frozenset({"get"}),
    ("resource.k8s.io", "devicetaintrules"): frozenset({"list"}),
    ("resource.k8s.io", "resourceclaims"): frozenset({"list"}),
    ("resource.k8s.io", "resourceclaimtemplates"): frozenset({"create", "delete", "get", "list", "patch"}),
    ("resource.k8s.io", "resourceslices"): frozenset({"list"}),
    ("coordination.k8s.io", "leases"): frozenset({"create", "get", "update"}),
}
OF_INFERENCE_POOLS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("inference.networking.k8s.io", "inferencepools"): frozenset({"create", "delete", "list", "patch"}),
}
"""What it needs besides where it makes InferencePools."""


def define(kube: Kube) -> None:
    """Create the role for all of a cluster."""
    kube.create(_role("ClusterRole", {"name": ROLE}))


def grant_role(kube: Kube, identity: Identity, namespace: str) -> None:
    """Give a user a role of one namespace alone."""
    metadata = {"name": ROLE, "namespace": namespace}
    kube.create(_role("Role", metadata))
    kube.create(_binding("RoleBinding", metadata, "Role", identity))
    wait_for_right(kube, identity.name, "cachefleet.io", "prefixcachepools", "list", namespace=namespace)


def let_make_inference_pools(kube: Kube, identity: Identity) -> None:
    """Give a user the further rights, in all namespaces."""
    metadata = {"name": f"{identity.name}-inference"}
    kube.create(_role("ClusterRole", metadata, OF_INFERENCE_POOLS))
    kube.create(_binding("ClusterRoleBinding", metadata, "ClusterRole", identity, metadata["name"]))
    (key,) = OF_INFERENCE_POOLS
    wait_for_right(kube, identity.name, *key, "patch")


def grant(kube: Kube, identity: Identity, namespace: str = "") -> None:
    """Give a user the role, in one namespace or (empty) in all."""
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    metadata = {"name": identity.name} | ({"namespace": namespace} if namespace else {})
    kube.create(_binding(kind, metadata, "ClusterRole", identity))
    wait_for_right(kube, identity.name, "cachefleet.io", "prefixcachepools", "list", namespace=namespace)


def allowed(
    kube: Kube, user: str, group: str, resource: str, verb: str, *, namespace: str = "", name: str = ""
) -> bool:
    """Whether the API server lets a user do this, in one namespace or (empty) in all, to the object of this name or
    (empty) to any; parts as "resource/part".
    """
    resource, _, part = resource.partition("/")
    asked = {"group": group, "resource": resource, "subresource": part, "verb": verb, "namespace": namespace}
    asked |= {"name": name}
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": asked},
    }
    answer = kube.request("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def wait_for_right(kube: Kube, user: str, group: str, resource: str, verb: str, *, namespace: str = "") -> None:
    """Wait until the API server knows of a binding: it learns of roles and bindings some time after they are made."""
    until(partial(allowed, kube, user, group, resource, verb, namespace=namespace))


def _role(kind: str, metadata: Object, rights: Mapping[tuple[str, str], frozenset[str]] = RIGHTS) -> Object:
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(verbs)}
        for (group, resource), verbs in rights.items()
    ]
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": metadata, "rules": rules}


def _binding(kind: str, metadata: Object, role: str, identity: Identity, name: str = ROLE) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": identity.name}],
    }


def used(requests: Iterable[Mapping[str, Any]], identity: Identity) -> dict[tuple[str, str], set[str]]:
    """What a user did, from the audit log. A patch that made its object needed the right to create, too."""
    found: dict[tuple[str, str], set[str]] = {}
    for request in by(requests, identity):
        about = request["objectRef"]
        resource = about["resource"] + (f"/{about['subresource']}" if "subresource" in about else "")
        verbs = found.setdefault((about.get("apiGroup", ""), resource), set())
        verbs.add(request["verb"])
        if request["verb"] == "patch" and request.get("responseStatus", {}).get("code") == 201:
            verbs.add("create")
    return found


def writes(requests: Iterable[Mapping[str, Any]], identity: Identity) -> list[str]:
    """What a user wrote, its Lease and dry runs left out."""
    return [
        f"{request['verb']} {request['objectRef']['resource']}/{request['objectRef'].get('name', '')}"
        for request in by(requests, identity)
        if request["verb"] not in {"get", "list", "watch"}
        and request["objectRef"]["resource"] != "leases"
        and "dryRun=" not in request["requestURI"]
    ]


def by(requests: Iterable[Mapping[str, Any]], identity: Identity) -> list[Mapping[str, Any]]:
    """A user's requests about objects."""
    return [
        request for request in requests if request["user"].get("username") == identity.name and "objectRef" in request
    ]
