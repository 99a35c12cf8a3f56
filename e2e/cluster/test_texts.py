"""Any text in a pool before a real API server: it reaches the workers as it was written, or is refused by its field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cachefleet_core.pool.admitted import in_force
from e2e.cluster.bench import Bench
from e2e.cluster.kube import Object, until

pytestmark = pytest.mark.cluster

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=40)
ODD = "Be kind 😀 \u2028\u0085\ufeff\x7f\ufffe \\ud83d: #\t\U0010ffff"


@pytest.mark.timeout(600)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(ODD)
@given(TEXTS)
def test_any_text_reaches_the_workers(bench: Bench, text: str) -> None:
    if bench.kube.get("PrefixCachePool", bench.namespace, "demo") is None:
        bench.operator()
        bench.create()
        bench.settled()
    bench.edit(**spoken(text))
    pool = until(lambda: _admitted(bench))
    assert bench.conditions()["ConfigValid"]["status"] == "True"
    found = in_force(pool).pool.spec
    assert found.prefix_cache.warm_prefixes[0].messages[0].content == text
    assert pool["status"]["admitted"]["spec"]["engine"]["extraArgs"] == [f"x{text}"]
    until(lambda: _spoken(bench.child("Deployment")) == [text, f"x{text}", text])
    policy = bench.child("ConfigMap")
    assert policy is not None
    assert json.loads(policy["data"]["policy.json"])["generation"] == pool["metadata"]["generation"]


def spoken(text: str) -> Object:
    """A pool's fields with this text in each that takes any."""
    return {
        "engine": {"env": [{"name": "GREETING", "value": text}], "extraArgs": [f"x{text}"]},
        "podTemplate": {"metadata": {"annotations": {"example.org/greeting": text}}},
        "prefixCache": {
            "warmPrefixes": [
                {"name": "kind", "tenants": ["acme"], "messages": [{"role": "system", "content": text}]},
            ]
        },
    }


def test_an_edit_that_the_api_server_refuses_touches_nothing(bench: Bench) -> None:
    """A disruption budget and a policy would be applied before and after what is refused."""
    bench.operator()
    bench.create()
    bench.settled()
    bench.edit(
        rollout={"maxUnavailable": 2},
        prefixCache={"budgetMiB": 8},
        podTemplate={"metadata": {"annotations": {"no key 😀": ""}}},
    )
    until(lambda: bench.reason("ConfigValid") == "Refused")
    condition = bench.conditions()["ConfigValid"]
    assert "spec.template.annotations" in condition["message"]
    pool = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    assert (pool["status"]["admitted"]["generation"], pool["metadata"]["generation"]) == (1, 2)
    disruptions, policy = bench.child("PodDisruptionBudget"), bench.child("ConfigMap")
    assert disruptions is not None
    assert policy is not None
    assert disruptions["spec"]["maxUnavailable"] == 1
    assert json.loads(policy["data"]["policy.json"])["budget_mib"] == 512


def _admitted(bench: Bench) -> Object | None:
    pool = bench.kube.read("PrefixCachePool", bench.namespace, "demo")
    status = pool.get("status", {})
    current = status.get("admitted", {}).get("generation") == pool["metadata"]["generation"]
    return pool if current and bench.conditions() else None


def _spoken(deployment: Object | None) -> list[Any]:
    assert deployment is not None
    template = deployment["spec"]["template"]
    engine = template["spec"]["containers"][0]
    value = next((each.get("value") for each in engine["env"] if each["name"] == "GREETING"), None)
    said = [each for each in engine["args"] if each.startswith("x")]
    return [value, *said, template["metadata"]["annotations"].get("example.org/greeting")]
