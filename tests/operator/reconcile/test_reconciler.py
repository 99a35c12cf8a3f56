from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest

from cachefleet_core.pool.model_names import NameConflict
from cachefleet_core.tenancy import FleetKey
from cachefleet_operator.controlplane_client.facts_cache import no_facts
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects
from cachefleet_operator.reconcile.apply import Applier, NotLeadingError
from cachefleet_operator.reconcile.fleet_key import FleetKeyError
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.status.pool_assessment import judge
from cachefleet_runtime.kubernetes import KubernetesError, Object, RefusedError, RetryableError
from tests.operator.pools import SETTINGS, document, pool
from tests.operator.store import Store

KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")
FLEET_KEY = Ref("Secret", "ops", "cachefleet-fleet-key")


def reconciler(store: Store, *, leads: bool = True) -> Reconciler:
    applier = Applier(store, lambda: leads)
    return Reconciler(store, applier, SETTINGS, today=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def conditions(store: Store) -> dict[str, Object]:
    return {condition["type"]: condition for condition in store.objects[POOL]["status"]["conditions"]}


def failing(kind: str, error: KubernetesError) -> Any:
    def before(verb: str, ref: Ref) -> None:
        if verb != "get" and ref.kind == kind:
            raise error

    return before


async def test_makes_the_fleet_key_once() -> None:
    store = Store(document())
    first = await reconciler(store).fleet_key()
    again = await reconciler(store).fleet_key()
    assert first.index_key == again.index_key
    assert store.writes == [("create", FLEET_KEY)]


@pytest.mark.parametrize("data", [{}, {"fleet.key": "!"}, {"fleet.key": "c2hvcnQ="}, None])
async def test_a_broken_fleet_key_is_never_replaced(data: Any) -> None:
    secret = {**FLEET_KEY.manifest(), "data": data}
    store = Store(document(), secret)
    with pytest.raises(FleetKeyError):
        await reconciler(store).fleet_key()
    await reconciler(store).reconcile(KEY)
    assert store.objects[FLEET_KEY]["data"] == data
    assert {ref.kind for _, ref in store.writes} == {"Event", "PrefixCachePool"}
    assert conditions(store)["Ready"]["reason"] == "FleetKeyBroken"


async def test_all_workers_of_a_fleet_hold_keys_of_one_secret() -> None:
    store = Store(document(), child_objects.fleet_key_secret("ops", FleetKey(bytes(32))))
    await reconciler(store).reconcile(KEY)
    made = store.objects[Ref("Secret", "serving", "demo-worker-keys")]
    assert made["data"] == child_objects.keys_secret(_pool(), FleetKey(bytes(32)))["data"]


async def test_writes_nothing_without_the_lease() -> None:
    store = Store(document())
    with pytest.raises(NotLeadingError):
        await reconciler(store, leads=False).reconcile(KEY)
    assert store.writes == []


async def test_leaves_a_dying_pool_alone() -> None:
    store = Store(document(deletionTimestamp="2026-01-01T00:00:00Z"))
    assert await reconciler(store).reconcile(KEY) is Outcome.GONE
    assert await reconciler(Store()).reconcile(KEY) is Outcome.GONE
    assert store.writes == []


async def test_what_the_server_refuses_becomes_a_condition() -> None:
    store = Store(document())
    store.before = failing("Deployment", RefusedError(422, "Invalid", "spec.template: no such field"))
    assert await reconciler(store).reconcile(KEY) is Outcome.REFUSED
    assert conditions(store)["ConfigValid"]["reason"] == "Refused"
    assert conditions(store)["Ready"]["message"] == "spec.template: no such field"
    written = len(store.writes)
    assert await reconciler(store).reconcile(KEY) is Outcome.REFUSED
    assert len(store.writes) == written
    store.before = lambda _verb, _ref: None
    assert await reconciler(store).reconcile(KEY) is Outcome.WROTE
    assert conditions(store)["ConfigValid"]["status"] == "True"


async def test_a_crd_that_is_older_than_the_operator_is_named() -> None:
    class Old(Store):
        async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
            if "admitted" in manifest.get("status", {}):
                words = "Kind=PrefixCachePool): .status.admitted: field not declared in schema"
                raise RefusedError(500, "InternalError", words)
            return await super().apply(manifest, subresource=subresource, dry_run=dry_run)

    store = Old(document())
    assert await reconciler(store).reconcile(KEY) is Outcome.REFUSED
    message = conditions(store)["ConfigValid"]["message"]
    assert message.endswith("field not declared in schema; the CRD is of another version: kubectl apply -f crds/")


async def test_a_refusal_in_other_words_each_time_is_told_once() -> None:
    """As of a webhook that numbers its refusals, or of two bad annotations, which come in any order."""
    store, count = Store(document()), itertools.count()

    def before(verb: str, ref: Ref) -> None:
        if verb != "get" and ref.kind == "Deployment":
            raise RefusedError(403, "Forbidden", f"denied, request {next(count)}")

    store.before = before
    for _ in range(2):
        assert await reconciler(store).reconcile(KEY) is Outcome.REFUSED
        store.objects[POOL]["metadata"]["managedFields"] = [
            {"manager": "cachefleet-operator", "subresource": "status", "time": "2026-01-01T00:00:00Z"}
        ]
    written = [(verb, ref.kind) for verb, ref in store.writes if ref.kind in {"Event", "PrefixCachePool"}]
    assert written == [("create", "Event"), ("patch", "PrefixCachePool")]


async def test_what_is_being_deleted_does_not_serve_as_it_should() -> None:
    """In the foreground it stays until its last pod has gone."""
    store = Store(document())
    await reconciler(store).reconcile(KEY)
    store.settle()
    await reconciler(store).reconcile(KEY)
    assert conditions(store)["Ready"]["status"] == "True"
    deployment = store.objects[Ref("Deployment", "serving", "demo-workers")]
    deployment["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    deployment["status"]["readyReplicas"] = 0
    with pytest.raises(RetryableError):
        await reconciler(store).reconcile(KEY)
    assert conditions(store)["Ready"]["status"] == "False"


async def test_a_namespace_that_went_meanwhile_is_no_failure() -> None:
    store = Store(document())
    store.before = failing("ServiceAccount", RefusedError(404, "NotFound", "namespaces not found"))
    assert await reconciler(store).reconcile(KEY) is Outcome.GONE


async def test_a_failing_server_is_passed_on_and_nothing_is_said() -> None:
    store = Store(document())
    store.before = failing("Deployment", RetryableError(503, "Unavailable", "later"))
    with pytest.raises(RetryableError):
        await reconciler(store).reconcile(KEY)
    assert "status" not in store.objects[POOL]


async def test_a_pool_that_changed_meanwhile_gets_no_stale_status() -> None:
    store = Store(document())

    def change(verb: str, ref: Ref) -> None:
        if verb == "patch" and ref.kind == "Deployment":
            store.objects[POOL]["metadata"]["resourceVersion"] = "11"

    store.before = change
    with pytest.raises(RetryableError):
        await reconciler(store).reconcile(KEY)
    assert "status" not in store.objects[POOL]


async def test_an_event_told_before_a_crash_is_told_once() -> None:
    store = Store(document({"prefixCache": {"budgetMiB": 9999}}))
    store.before = failing("PrefixCachePool", RetryableError(503, "Unavailable", "later"))
    with pytest.raises(RetryableError):
        await reconciler(store).reconcile(KEY)
    store.before = lambda _verb, _ref: None
    await reconciler(store).reconcile(KEY)
    assert sum(ref.kind == "Event" for ref in store.objects) == 1


async def test_objects_of_an_earlier_pool_are_waited_for() -> None:
    store = Store(document())
    await reconciler(store).reconcile(KEY)
    store.objects[POOL] = document(uid="uid-2")
    with pytest.raises(RetryableError, match="earlier pool"):
        await reconciler(store).reconcile(KEY)


async def test_a_taken_name_is_looked_at_again() -> None:
    store = Store(document(), {**Ref("Service", "serving", "demo-workers").manifest(), "spec": {}})
    assert await reconciler(store).reconcile(KEY) is Outcome.REFUSED
    assert conditions(store)["ConfigValid"]["reason"] == "NameTaken"
    del store.objects[Ref("Service", "serving", "demo-workers")]
    assert await reconciler(store).reconcile(KEY) is Outcome.WROTE


async def test_a_pool_that_cannot_be_read_keeps_its_models_name() -> None:
    store, facts_cache, later = Store(document({"engine": {"x": 1}})), no_facts(), pool(namespace="zoo")
    facts_cache.note(later)
    applier = Applier(store, lambda: True)
    today = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    await Reconciler(store, applier, SETTINGS, today=lambda: today, facts_cache=facts_cache).reconcile(KEY)
    assert conditions(store)["ConfigValid"]["status"] == "False"
    assert facts_cache.name_conflict(later.key) == NameConflict(KEY)


def test_many_problems_are_told_briefly() -> None:
    pool, verdict = judge(document({"engine": dict.fromkeys("abcdefgh", 1)}))
    assert pool is None
    assert verdict.invalid is not None
    assert verdict.invalid[1].endswith("and 3 more")


@pytest.mark.parametrize("spec", [None, [], "text", {"model": None}, {"engine": {"env": [None]}}])
def test_nonsense_is_judged_and_not_stumbled_over(spec: Any) -> None:
    pool, verdict = judge({**document(), "spec": spec})
    assert pool is None
    assert not verdict.admitted


def _pool() -> Any:
    return judge(document())[0]
