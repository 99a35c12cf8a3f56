"""Certificates in a real API server: what is made, renewed and mounted, and what an EndpointSlice says of TLS."""

from __future__ import annotations

import base64

import pytest

from cachefleet_controlplane.pools.kubernetes_objects import parse_slice
from cachefleet_core.tls_names import worker_server_name
from cachefleet_operator.certificates.certificate_secrets import read_serving
from e2e.cluster import kubelet
from e2e.cluster.bench import Bench
from e2e.cluster.kube import Object, until

pytestmark = pytest.mark.cluster

SECRET = "demo-worker-tls"
PLANE = "cachefleet-controlplane-tls"


def secret(bench: Bench, name: str) -> Object:
    found = until(lambda: bench.kube.get("Secret", bench.namespace, name))
    assert found["type"] == "kubernetes.io/tls"
    return found


def spoil(bench: Bench, name: str) -> None:
    """A certificate that nobody can read."""
    data = {"tls.crt": base64.b64encode(b"spoilt").decode()}
    bench.kube.patch("Secret", bench.namespace, name, {"data": data})


def test_certificates_are_made_renewed_in_place_and_go_with_their_pool(bench: Bench) -> None:
    bench.operator(tls="issued", resync_seconds=1, admin_url="https://plane.example.svc:8081", facts_timeout_seconds=1)
    bench.create()
    bench.settled()
    plane, workers = (read_serving(secret(bench, name)) for name in (PLANE, SECRET))
    assert plane is not None
    assert workers is not None
    assert "plane.example.svc" in plane.certificate.names
    assert worker_server_name(f"{bench.namespace}/demo") in workers.certificate.names
    bundle = bench.kube.read("ConfigMap", bench.namespace, "cachefleet-ca")["data"]["ca.crt"]
    assert base64.b64decode(secret(bench, SECRET)["data"]["ca.crt"]).decode() == bundle
    before = bench.child("Deployment")
    assert before is not None
    for name in (PLANE, SECRET):
        spoil(bench, name)
        until(lambda name=name: read_serving(secret(bench, name)))  # type: ignore[misc]
    after = bench.child("Deployment")
    assert after is not None
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    bench.kube.delete("PrefixCachePool", bench.namespace, "demo")
    until(lambda: bench.kube.get("Secret", bench.namespace, SECRET) is None)
    assert secret(bench, PLANE)


def test_a_slice_tells_which_pods_serve_tls(bench: Bench) -> None:
    first = bench.operator()
    bench.create(replicas=1)
    bench.settled()
    addressed(bench, "10.9.0.1")
    until(lambda: urls(bench) == {"http://10.9.0.1:8000"})
    first.stop()
    bench.operator(tls="issued")  # the old worker stays until the new one is ready
    until(lambda: len(bench.kube.list("Pod", bench.namespace)) == 2)
    addressed(bench, "10.9.0.2")
    until(lambda: urls(bench) == {"http://10.9.0.1:8000", "https://10.9.0.2:8000"})


def addressed(bench: Bench, address: str) -> None:
    """The one pod without an address gets a node and one; the first is ready."""
    [pod] = [pod for pod in bench.kube.list("Pod", bench.namespace) if not pod["status"].get("podIP")]
    name, node = pod["metadata"]["name"], f"node-{bench.namespace}"
    if address.endswith(".1"):
        bench.kube.request("POST", "api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        bench.stack.callback(bench.kube.request, "DELETE", f"api/v1/nodes/{node}")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": node},
    }
    bench.kube.request("POST", f"api/v1/namespaces/{bench.namespace}/pods/{name}/binding", binding)
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    bench.kube.patch("Pod", bench.namespace, name, {"status": status}, subresource="status")
    if address.endswith(".1"):
        kubelet.ready(bench.kube, pod)


def urls(bench: Bench) -> set[str]:
    """Of all workers, as the control plane reads them."""
    slices = bench.kube.list("EndpointSlice", bench.namespace)
    return {endpoint.url for each in slices for found in [parse_slice(each)] if found for endpoint in found.endpoints}
