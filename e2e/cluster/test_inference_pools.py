"""InferencePools of the Gateway API Inference Extension, by its own CRDs, on a real API server; gateways are played."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import yaml

from cachefleet_operator.reasons import Reason
from e2e.cluster import rights
from e2e.cluster.bench import Bench
from e2e.cluster.kube import Object, Refused, until

pytestmark = pytest.mark.cluster

CRD: Final[Object] = yaml.safe_load((Path(__file__).parent / "crds" / "inferencepools-v1.6.0.yaml").read_text())
OFTEN: Final = {"inference_pool_seconds": 0.3, "picker_service": "picker:9002"}
KIND: Final = "InferencePool"
CONDITION: Final = "InferencePoolAccepted"


def served(bench: Bench) -> bool:
    with suppress(Refused, ValueError):  # what is not served is answered in plain text
        bench.kube.list(KIND, bench.namespace)
        return True
    return False


def is_installed(bench: Bench) -> bool:
    """Whether the CRD is served; it is created where it is not there."""
    with suppress(Refused):  # it exists, or one of that name is still being deleted
        bench.kube.create(CRD)
    return served(bench)


def is_uninstalled(bench: Bench) -> bool:
    """Whether the CRD is gone; it is deleted where it is there."""
    with suppress(Refused):
        bench.kube.delete("CustomResourceDefinition", "", CRD["metadata"]["name"])
    return not served(bench)


def service(bench: Bench) -> Object:
    spec = {"ports": [{"name": "picker", "port": 9002}], "selector": {"app": "x"}}
    metadata = {"name": "picker", "namespace": bench.namespace}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def begin(bench: Bench) -> None:
    """With the CRD, the rights and the picker's Service, an operator and a pool."""
    until(partial(is_installed, bench))
    rights.let_make_inference_pools(bench.kube, bench.identity)
    bench.kube.create(service(bench))
    bench.operator(**OFTEN)
    bench.create(inferencePool={"enabled": True})


def made(bench: Bench) -> Object | None:
    return bench.kube.get(KIND, bench.namespace, "demo")


def is_(bench: Bench, reason: Reason) -> Callable[[], bool]:
    return lambda: bench.reason(CONDITION) == reason


def told(bench: Bench, status: str, reason: str, *, seen: int | None = None) -> None:
    """What a gateway's controller writes of it."""
    about = {"type": "Accepted", "status": status, "reason": reason, "message": "m"}
    generation = seen or bench.kube.read(KIND, bench.namespace, "demo")["metadata"]["generation"]
    condition = {**about, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation}
    ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "edge", "namespace": "infra"}
    parents = [{"parentRef": ref, "controllerName": "example.com/gateway", "conditions": [condition]}]
    bench.kube.patch(KIND, bench.namespace, "demo", {"status": {"parents": parents}}, subresource="status")


def test_one_is_made_mended_and_deleted_and_what_gateways_say_is_told(lonely: Bench) -> None:
    bench = lonely
    begin(bench)
    first = until(lambda: made(bench))
    assert first["spec"]["selector"] == {"matchLabels": {"cachefleet.io/pool": "demo"}}
    assert first["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"
    until(is_(bench, Reason.NO_GATEWAY))
    told(bench, "False", "HTTPRouteNotAccepted")
    until(is_(bench, Reason.REFUSED_BY_GATEWAY))
    assert bench.conditions()[CONDITION]["message"] == "Gateway infra/edge: Accepted is False, HTTPRouteNotAccepted: m"
    told(bench, "True", "Accepted")
    until(is_(bench, Reason.ACCEPTED_BY_GATEWAYS))
    assert bench.conditions()[CONDITION]["status"] == "True"
    bench.edit(inferencePool={"failureMode": "FailOpen"})
    until(lambda: (made(bench) or {})["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen")
    until(is_(bench, Reason.GATEWAY_PENDING))
    told(bench, "True", "Accepted")
    until(is_(bench, Reason.ACCEPTED_BY_GATEWAYS))
    bench.edit(inferencePool={"enabled": False})
    until(lambda: made(bench) is None)
    until(lambda: bench.condition("Ready") and CONDITION not in bench.conditions())


def test_edits_by_hand_are_undone_and_at_rest_nothing_is_written(lonely: Bench) -> None:
    bench = lonely
    begin(bench)
    wanted = until(lambda: made(bench))["spec"]
    for change in (
        {"selector": {"matchLabels": {"zone": "a"}}},
        {"selector": {"matchLabels": {"cachefleet.io/pool": "other"}}},
        {"targetPorts": [{"number": 9000}]},
        {"targetPorts": [{"number": 8000}, {"number": 9000}]},
        {"endpointPickerRef": {"failureMode": "FailOpen", "name": "mine"}},
        {"appProtocol": "kubernetes.io/h2c"},
    ):
        bench.kube.patch(KIND, bench.namespace, "demo", {"spec": change})
        until(lambda: (made(bench) or {}).get("spec") == wanted)
    bench.kube.delete(KIND, bench.namespace, "demo")
    until(lambda: (made(bench) or {}).get("spec") == wanted)
    bench.settled()
    until(is_(bench, Reason.NO_GATEWAY))
    version = (made(bench) or {})["metadata"]["resourceVersion"]
    before = len(looks(bench))
    until(lambda: len(looks(bench)) > before + 3)
    assert (made(bench) or {})["metadata"]["resourceVersion"] == version
    used = rights.used(bench.cluster.requests(bench.identity.name), bench.identity)
    assert used["inference.networking.k8s.io", "inferencepools"] <= next(iter(rights.OF_INFERENCE_POOLS.values()))


def looks(bench: Bench) -> list[Object]:
    mine = rights.by(bench.cluster.requests(bench.identity.name), bench.identity)
    return [dict(each) for each in mine if each["objectRef"]["resource"] == "inferencepools"]


def test_without_the_crd_workers_are_started_and_it_is_told_what_to_install(lonely: Bench) -> None:
    bench = lonely
    until(partial(is_uninstalled, bench))
    rights.let_make_inference_pools(bench.kube, bench.identity)
    bench.kube.create(service(bench))
    bench.operator(**OFTEN)
    bench.create(inferencePool={"enabled": True})
    until(is_(bench, Reason.INFERENCE_POOLS_NOT_SERVED))
    bench.settled()
    assert bench.reason("ConfigValid") == "Valid"
    before = len(looks(bench))
    until(lambda: len(looks(bench)) > before + 3)
    assert {each["verb"] for each in looks(bench)} == {"list"}
    until(partial(is_installed, bench))
    until(lambda: made(bench))
    until(is_(bench, Reason.NO_GATEWAY))


def test_without_the_right_the_server_s_words_are_told_and_workers_are_started(lonely: Bench) -> None:
    bench = lonely
    until(partial(is_installed, bench))
    bench.kube.create(service(bench))
    bench.operator(**OFTEN)
    bench.create(inferencePool={"enabled": True})
    until(is_(bench, Reason.REFUSED))
    assert 'cannot list resource "inferencepools"' in bench.conditions()[CONDITION]["message"]
    bench.settled()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"failureMode": "failOpen"}, 'supported values: "FailOpen", "FailClose"'),
        ({"enabled": "yes"}, "must be of type boolean"),
        ({"labels": [{"name": "a/b/c"}]}, "spec.inferencePool.labels[0].name"),
        ({"labels": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        ({"ports": [8000]}, "unknown field"),
    ],
    ids=str,
)
def test_odd_ones_are_refused_by_the_server(bench: Bench, given: Object, words: str) -> None:
    with pytest.raises(Refused) as refused:
        bench.create(inferencePool=given)
    assert words in refused.value.message
