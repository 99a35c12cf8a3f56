"""Autoscalers of each pool that is named: ScaledObjects with the queries of docs/operations.md, and HPAs."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.chart.helm import Object, Refused, template
from tests.docs.test_autoscaler_queries import POOL, adapter_queries, queries

pytestmark = pytest.mark.cluster

HPA: Final = "HorizontalPodAutoscaler"
QWEN: Final[Object] = {"namespace": "serving", "name": "qwen", "minWorkers": 0, "maxWorkers": 4}


def scaled(*pools: Object, **values: Any) -> list[Object]:
    return template({"autoscaling": {"pools": list(pools)} | values}).of("ScaledObject")


def test_by_default_nothing_is_scaled() -> None:
    assert template({}).of("ScaledObject") == template({}).of(HPA) == []


def test_a_pool_is_scaled_by_its_own_scale_within_its_bounds() -> None:
    [one, other] = scaled(QWEN, {"namespace": "batch", "name": "b", "maxWorkers": 2})
    target = {"apiVersion": "cachefleet.io/v1alpha1", "kind": "PrefixCachePool", "name": "qwen"}
    assert (one["metadata"]["namespace"], one["spec"]["scaleTargetRef"]) == ("serving", target)
    bounds = [(told["spec"]["minReplicaCount"], told["spec"]["maxReplicaCount"]) for told in (one, other)]
    assert bounds == [(0, 4), (1, 2)]
    down = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]


@pytest.mark.parametrize("name", ["123", "true"])
def test_a_name_that_reads_as_something_else_stays_a_name(name: str) -> None:
    [one] = scaled({"namespace": name, "name": name, "maxWorkers": 2})
    metadata = one["metadata"]
    assert (metadata["name"], metadata["namespace"], one["spec"]["scaleTargetRef"]["name"]) == (name, name, name)


def test_its_queries_are_those_of_the_page() -> None:
    [one] = scaled(QWEN)
    told = {trigger["name"]: trigger["metadata"]["query"] for trigger in one["spec"]["triggers"]}
    page = {name: query.replace(POOL, "serving/qwen") for name, query in queries().items()}
    assert told == {name: page[name] for name in ("active", "backlog", "blocks")}
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in one["spec"]["triggers"]} == {"false"}


@pytest.mark.parametrize(("own", "asked"), [({}, 1), ({"hitCurve": False}, 0)])
def test_the_hit_curve_asks_where_it_is_told_to(own: Object, asked: int) -> None:
    [one] = scaled(QWEN | own, hitCurve=True)
    told = {trigger["name"]: trigger["metadata"] for trigger in one["spec"]["triggers"]}
    assert ("desired" in told) == asked
    if asked:
        assert told["desired"]["query"] == queries()["desired"].replace(POOL, "serving/qwen")
        assert (told["desired"]["threshold"], told["desired"]["activationThreshold"]) == ("1", "1000")


def test_targets_may_differ_by_pool() -> None:
    own = QWEN | {"backlogSeconds": 9.5, "idleSeconds": 60, "prometheus": "https://metrics.example/prom"}
    [one] = scaled(own | {"scaleInSeconds": 60}, busyBlocks=0.5)
    down = one["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    assert [policy["periodSeconds"] for policy in down["policies"]] == [60]
    active, backlog, blocks = (trigger["metadata"] for trigger in one["spec"]["triggers"])
    assert (backlog["threshold"], blocks["threshold"]) == ("9.5", "0.5")
    assert "< bool 60)" in active["query"]
    assert active["serverAddress"] == "https://metrics.example/prom"


def autoscalers(*pools: Object, kubernetes: str = "1.37.0", **values: Any) -> list[Object]:
    given = {"autoscaling": {"pools": list(pools), "kind": HPA} | values}
    return template(given, kubernetes=kubernetes).of(HPA)


def test_an_hpa_scales_the_pool_within_its_bounds_and_slowly_in() -> None:
    [one, other] = autoscalers(QWEN, {"namespace": "batch", "name": "b", "maxWorkers": 2, "scaleInSeconds": 60})
    target = {"apiVersion": "cachefleet.io/v1alpha1", "kind": "PrefixCachePool", "name": "qwen"}
    assert (one["metadata"]["namespace"], one["spec"]["scaleTargetRef"]) == ("serving", target)
    assert [(told["spec"]["minReplicas"], told["spec"]["maxReplicas"]) for told in (one, other)] == [(0, 4), (1, 2)]
    down = [told["spec"]["behavior"]["scaleDown"] for told in (one, other)]
    assert [each["policies"] for each in down] == [
        [{"type": "Pods", "value": 1, "periodSeconds": seconds}] for seconds in (300, 60)
    ]
    assert {each["stabilizationWindowSeconds"] for each in down} == {900}


def test_an_hpa_asks_for_what_the_adapter_s_rules_serve_of_its_pool() -> None:
    [one] = autoscalers(QWEN, backlogSeconds=0.25, hitCurve=True)
    metrics = {each["external"]["metric"]["name"]: each["external"] for each in one["spec"]["metrics"]}
    assert list(metrics) == list(adapter_queries(POOL))
    assert {str(each["metric"]["selector"]) for each in metrics.values()} == {"{'matchLabels': {'pool': 'qwen'}}"}
    assert [each["target"]["averageValue"] for each in metrics.values()] == ["2", "250m", "800m", "1"]


def test_an_hpa_asks_for_no_more_than_its_adapter_has() -> None:
    [one] = autoscalers(QWEN)
    assert "cachefleet_pool_wanted_workers" not in str(one)


def test_pools_may_differ_in_the_kind_of_their_autoscaler() -> None:
    values = {"autoscaling": {"pools": [QWEN | {"kind": HPA}, QWEN | {"name": "other"}]}}
    made = template(values, kubernetes="1.37.0")
    assert [len(made.of(kind)) for kind in ("ScaledObject", HPA)] == [1, 1]


def test_an_hpa_goes_to_zero_from_kubernetes_1_37_on() -> None:
    with pytest.raises(Refused) as refused:
        autoscalers(QWEN, kubernetes="1.36.3")
    assert "of serving/qwen minWorkers 0 needs Kubernetes 1.37" in str(refused.value)
    assert autoscalers(QWEN | {"minWorkers": 1}, kubernetes="1.36.3")
    assert autoscalers(QWEN, kubernetes="1.37.0-rc.1")


@pytest.mark.parametrize("where", ["pool", "all"])
def test_an_hpa_cannot_be_told_how_long_a_pool_is_idle(where: str) -> None:
    with pytest.raises(Refused) as refused:
        autoscalers(QWEN | ({"idleSeconds": 60} if where == "pool" else {}), idleSeconds=60)
    assert "idleSeconds 60 cannot be told to a HorizontalPodAutoscaler" in str(refused.value)


BAD: dict[str, tuple[Object, str]] = {
    "no pool": ({"namespace": "serving", "maxWorkers": 2}, "name"),
    "no bound": ({"namespace": "serving", "name": "qwen"}, "maxWorkers"),
    "fewer than none": (QWEN | {"minWorkers": -1}, "minWorkers"),
    "too many": (QWEN | {"maxWorkers": 1001}, "maxWorkers"),
    "none at most": (QWEN | {"maxWorkers": 0}, "maxWorkers"),
    "more than the most": (QWEN | {"minWorkers": 5}, "of serving/qwen minWorkers 5 is more than maxWorkers 4"),
    "more than the most by default": (QWEN | {"minWorkers": 2, "maxWorkers": 1}, "minWorkers 2 is more"),
    "share of blocks": (QWEN | {"busyBlocks": 1.5}, "busyBlocks"),
    "hit curve": (QWEN | {"hitCurve": "yes"}, "hitCurve"),
    "idle": (QWEN | {"idleSeconds": 5}, "idleSeconds"),
    "kind": (QWEN | {"kind": "Deployment"}, "kind"),
    "an HPA with more than the most": (
        QWEN | {"minWorkers": 5, "kind": HPA},
        "of serving/qwen minWorkers 5 is more than maxWorkers 4",
    ),
    "unknown": (QWEN | {"replicas": 5}, "replicas"),
    "Prometheus without a scheme": (QWEN | {"prometheus": "prometheus:9090"}, "prometheus"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_pool_that_cannot_be_scaled_so_is_refused(case: str) -> None:
    bad, message = BAD[case]
    with pytest.raises(Refused) as refused:
        scaled(bad)
    assert message in str(refused.value)


def test_a_pool_of_another_namespace_than_those_served_is_refused() -> None:
    with pytest.raises(Refused) as refused:
        template({"autoscaling": {"pools": [QWEN]}, "namespaces": ["batch"]})
    assert "serving/qwen is in none of the namespaces batch" in str(refused.value)
