"""Pools that claim devices: the pod, the template, and clusters that have no claims."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests.child_objects import children
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_runtime.kubernetes import Object, RefusedError
from tests.operator.pools import SETTINGS, document, pool
from tests.operator.store import Store

KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")


def claiming(**claims: Any) -> dict[str, Any]:
    return {"device": {"claims": claims}, "engine": {"maxModelLen": 2048, "tensorParallelSize": 2}}


def made(spec: dict[str, Any]) -> dict[str, Object]:
    return {manifest["kind"]: manifest for manifest in children(pool(spec), SETTINGS)}


def reconciler(store: Store) -> Reconciler:
    today = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    return Reconciler(store, Applier(store, lambda: True), SETTINGS, today=lambda: today)


def templates(store: Store) -> list[str]:
    return sorted(ref.name for ref in store.objects if ref.kind == "ResourceClaimTemplate")


def condition(store: Store, kind: str) -> Object:
    found: Object = next(each for each in store.objects[POOL]["status"]["conditions"] if each["type"] == kind)
    return found


def test_devices_of_a_class_are_asked_for_by_a_template_of_the_pool_s_own() -> None:
    objects = made(claiming(className="gpu", selectors=["a", "b"]))
    template, spec = objects["ResourceClaimTemplate"], objects["Deployment"]["spec"]["template"]["spec"]
    exactly = {
        "deviceClassName": "gpu",
        "allocationMode": "ExactCount",
        "count": 2,
        "selectors": [{"cel": {"expression": "a"}}, {"cel": {"expression": "b"}}],
    }
    assert template["spec"]["spec"] == {"devices": {"requests": [{"name": "devices", "exactly": exactly}]}}
    assert template["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    name = template["metadata"]["name"]
    assert spec["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": name}]
    (engine,) = spec["containers"]
    assert engine["resources"] == {"claims": [{"name": "devices"}]}


def test_a_class_s_count_is_that_of_the_engine_unless_it_is_given() -> None:
    template = made(claiming(className="gpu", count=4))["ResourceClaimTemplate"]
    assert template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 4


@pytest.mark.parametrize("field", ["resourceClaimTemplateName", "resourceClaimName"])
def test_what_is_named_is_used_as_it_is(field: str) -> None:
    objects = made(claiming(**{field: "theirs"}))
    assert "ResourceClaimTemplate" not in objects
    spec = objects["Deployment"]["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == [{"name": "devices", field: "theirs"}]


def test_an_engine_on_a_cpu_may_claim_something_too() -> None:
    objects = made({"device": {"resource": "", "claims": {"className": "cores"}}})
    (engine,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert engine["resources"] == {"requests": {"memory": "8192Mi"}, "claims": [{"name": "devices"}]}
    assert "--enforce-eager" in engine["args"]


async def test_templates_of_former_specs_go_once_the_rollout_is_over() -> None:
    store = Store(document(claiming(className="gpu")))
    await reconciler(store).reconcile(KEY)
    (first,) = templates(store)
    store.settle()
    store.objects[POOL]["spec"]["device"]["claims"]["count"] = 4
    store.objects[POOL]["metadata"]["generation"] = 2
    await reconciler(store).reconcile(KEY)
    await reconciler(store).reconcile(KEY)
    assert len(templates(store)) == 2, "a pod of the old ReplicaSet may be made again"
    store.settle()
    await reconciler(store).reconcile(KEY)
    assert len(templates(store)) == 1
    assert first not in templates(store)
    assert await reconciler(store).reconcile(KEY) is Outcome.DONE


async def test_of_a_refused_spec_the_templates_that_run_stay() -> None:
    store = Store(document(claiming(className="gpu")))
    await reconciler(store).reconcile(KEY)
    store.settle()
    await reconciler(store).reconcile(KEY)
    before = templates(store)
    store.objects[POOL]["spec"]["prefixCache"]["budgetMiB"] = 999_999
    store.objects[POOL]["metadata"]["generation"] = 2
    await reconciler(store).reconcile(KEY)
    await reconciler(store).reconcile(KEY)
    assert condition(store, "BudgetAdmitted")["status"] == "False"
    assert templates(store) == before != []


async def test_a_template_of_somebody_else_with_a_pool_s_label_is_left_alone() -> None:
    store = Store(document(claiming(className="gpu")))
    theirs = Ref("ResourceClaimTemplate", "serving", "theirs")
    store.objects[theirs] = {
        **theirs.manifest(),
        "metadata": {"name": "theirs", "namespace": "serving", "uid": "x", "labels": {"cachefleet.io/pool": "demo"}},
    }
    await reconciler(store).reconcile(KEY)
    store.settle()
    await reconciler(store).reconcile(KEY)
    await reconciler(store).reconcile(KEY)
    assert theirs in store.objects


async def test_where_claims_are_not_served_no_worker_is_started_and_that_is_said() -> None:
    store = Store(document(claiming(resourceClaimName="theirs")))
    store.unserved = {"ResourceClaimTemplate"}
    await reconciler(store).reconcile(KEY)
    assert condition(store, "ConfigValid")["reason"] == "DevicesNotClaimable"
    assert "does not serve resource.k8s.io/v1" in condition(store, "ConfigValid")["message"]
    assert not [ref for ref in store.objects if ref.kind == "Deployment"]


async def test_rights_that_lack_are_said() -> None:
    def refuse(_: str, ref: Ref) -> None:
        if ref.kind == "ResourceClaimTemplate":
            raise RefusedError(403, "Forbidden", "may not list")

    store = Store(document(claiming(className="gpu")))
    store.before = refuse
    await reconciler(store).reconcile(KEY)
    assert condition(store, "ConfigValid")["message"].endswith("ResourceClaimTemplates cannot be read: may not list")


async def test_of_a_pool_without_claims_templates_are_asked_about_once() -> None:
    asked: list[str] = []
    store = Store(document())
    store.before = lambda _, ref: asked.append(ref.kind)
    one = reconciler(store)
    await one.reconcile(KEY)
    await one.reconcile(KEY)
    assert [kind for kind in asked if kind.startswith(("Resource", "Device"))] == ["ResourceClaimTemplate"]


@pytest.mark.parametrize(
    "after",
    [
        {"resource": "nvidia.com/gpu"},
        {"claims": {"resourceClaimName": "theirs"}},
        {"claims": {"resourceClaimTemplateName": "theirs"}},
    ],
    ids=["no claims", "a claim", "a template"],
)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "a new operator each time"])
async def test_the_last_template_goes_with_the_last_pod_that_is_made_of_it(
    after: Any,
    restarted: bool,  # noqa: FBT001  # a case
) -> None:
    store = Store(document(claiming(className="gpu")))
    lasting = reconciler(store)

    async def look() -> Outcome:
        return await (reconciler(store) if restarted else lasting).reconcile(KEY)

    await look()
    store.settle()
    store.objects[POOL]["spec"]["device"] = {"memoryMiB": 8192, **after}
    store.objects[POOL]["metadata"]["generation"] = 2
    await look()
    await look()
    assert len(templates(store)) == 1, "a pod of the old ReplicaSet may be made again"
    store.settle()
    await look()
    assert templates(store) == []
    assert await look() is Outcome.DONE


@pytest.mark.parametrize("how", ["not served", "not allowed"])
async def test_a_pool_without_claims_needs_no_claims(how: str) -> None:
    def refuse(_: str, ref: Ref) -> None:
        if ref.kind == "ResourceClaimTemplate":
            raise RefusedError(403, "Forbidden", "may not list")

    store = Store(document())
    store.unserved = {"ResourceClaimTemplate"}
    if how == "not allowed":
        store.before = refuse
    await reconciler(store).reconcile(KEY)
    assert condition(store, "ConfigValid")["status"] == "True"
