"""Objects of Kubernetes, and the requests that the operator makes about them."""

from __future__ import annotations

from typing import Any, cast

from cachefleet_operator.kube.objects import Api, Ref
from cachefleet_runtime.kubernetes import KubernetesClient


def test_a_manifest_has_the_identity_it_was_made_from() -> None:
    ref = Ref("Lease", "ops", "x")
    assert Ref.of(ref.manifest()) == ref


class Asked:
    """Notes what is asked of an API server."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any]] = []

    async def exchange(self, method: str, path: str, *, body: Any, **_: Any) -> tuple[int, str]:
        self.requests.append((method, path, body))
        return 200, "{}"

    def requested(self, *_: Any) -> None:
        pass


async def test_of_a_name_only_the_object_that_was_seen_is_deleted() -> None:
    server = Asked()
    api = Api(cast("KubernetesClient", server), server, request_seconds=1)
    await api.delete({"kind": "ResourceClaimTemplate", "metadata": {"name": "x", "namespace": "ops", "uid": "u"}})
    path = "/apis/resource.k8s.io/v1/namespaces/ops/resourceclaimtemplates/x"
    assert server.requests == [("DELETE", path, {"preconditions": {"uid": "u"}})]
