"""The rights an operator needs, and the rights it used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from e2e.cluster.control_plane import Identity
from e2e.cluster.kube import Kube, Object

ROLE: Final = "cachefleet-operator"
RIGHTS: Final[Mapping[tuple[str, str], frozenset[str]]] = {
    ("", "configmaps"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("", "events"): frozenset({"create"}),
    ("", "secrets"): frozenset({"create", "get"}),
    ("", "serviceaccounts"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("", "services"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("apps", "deployments"): frozenset({"create", "get", "list", "patch", "watch"}),
    ("cachefleet.io", "prefixcachepools"): frozenset({"get", "list", "watch"}),
    ("cachefleet.io", "prefixcachepools/status"): frozenset({"patch"}),
    ("coordination.k8s.io", "leases"): frozenset({"create", "get", "update"}),
}


def define(kube: Kube) -> None:
    """Create the role."""
    rules = [
        {"apiGroups": [group], "resources": [resource], "verbs": sorted(verbs)}
        for (group, resource), verbs in RIGHTS.items()
    ]
    metadata = {"name": ROLE}
    kube.create(
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules}
    )


def grant(kube: Kube, identity: Identity, namespace: str = "") -> None:
    """Give a user the role, in one namespace or (empty) in all."""
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    metadata = {"name": identity.name} | ({"namespace": namespace} if namespace else {})
    binding: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": identity.name}],
    }
    kube.create(binding)


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
    """What a user wrote, its Lease left out."""
    return [
        f"{request['verb']} {request['objectRef']['resource']}/{request['objectRef'].get('name', '')}"
        for request in by(requests, identity)
        if request["verb"] not in {"get", "list", "watch"} and request["objectRef"]["resource"] != "leases"
    ]


def by(requests: Iterable[Mapping[str, Any]], identity: Identity) -> list[Mapping[str, Any]]:
    """A user's requests about objects."""
    return [
        request for request in requests if request["user"].get("username") == identity.name and "objectRef" in request
    ]
