"""The planner's promises, on random pools and random worlds."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.tenancy import FleetKey
from cachefleet_operator.kube.foreign_edits import Edit
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects as manifests
from cachefleet_operator.reconcile.apply import Applier, Apply, Create, Emit, Rewrite, WriteStatus
from cachefleet_operator.reconcile.plan import Clock, Desired, Observed, leaving, plan
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.status.pool_assessment import judge
from cachefleet_runtime.kubernetes import Object
from tests.operator.pools import SETTINGS, document, pool
from tests.operator.store import CrashError, Store

KEY = FleetKey(bytes(range(32)))
NOW = Clock("2026-01-01T00:00:00Z")
POOL = Ref("PrefixCachePool", "serving", "demo")

specs = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.integers(0, 3),
        "prefixCache": st.fixed_dictionaries({"budgetMiB": st.sampled_from([0, 512, 9999])}),
        "engine": st.fixed_dictionaries({"image": st.sampled_from(["a:1", "b:2"])}),
        "hit": st.fixed_dictionaries({"threshold": st.sampled_from([0.0, 0.5])}),
        "role": st.sampled_from(["Both", "Nonsense"]),
        "podTemplate": st.sampled_from([{}, {"spec": {"nodeSelector": {"a": "b"}}}, {"nonsense": 1}]),
    },
)


def reconciler(store: Store) -> Reconciler:
    applier = Applier(store, lambda: True)
    return Reconciler(store, applier, SETTINGS, today=lambda: dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def pass_over(store: Store) -> Outcome:
    return asyncio.run(reconciler(store).reconcile(PoolKey("serving/demo")))


def edited(store: Store, spec: dict[str, Any]) -> None:
    """What a user's edit does: a new spec, a new generation, the status as it was."""
    live = store.objects.get(POOL)
    version = str(int(live["metadata"]["resourceVersion"]) + 1000) if live else "1"
    generation = live["metadata"]["generation"] + 1 if live else 1
    fresh = document(spec, generation=generation, resourceVersion=version)
    store.objects[POOL] = fresh if live is None else {**fresh, "status": live.get("status", {})}


def essence(store: Store) -> dict[Ref, Object]:
    """Everything but what differs between two histories: versions, uids, events and their times."""
    result = deepcopy({ref: each for ref, each in store.objects.items() if ref.kind != "Event"})
    for each in result.values():
        for name in ("resourceVersion", "uid", "generation"):
            each["metadata"].pop(name, None)
        each.get("status", {}).pop("observedGeneration", None)
    return result


def events(store: Store) -> int:
    return sum(ref.kind == "Event" for ref in store.objects)


def fresh() -> Store:
    return Store(manifests.fleet_key_secret("ops", KEY))


@given(st.lists(specs, min_size=1, max_size=4))
def test_a_plan_carried_out_leaves_nothing_to_plan(edits: list[dict[str, Any]]) -> None:
    store = fresh()
    for spec in edits:
        edited(store, spec)
        pass_over(store)
        assert pass_over(store) is Outcome.DONE
        store.settle()
        pass_over(store)
        assert pass_over(store) is Outcome.DONE


@given(st.lists(st.tuples(specs, st.integers(1, 9)), min_size=1, max_size=4))
def test_interrupted_after_any_write_it_ends_the_same(edits: list[tuple[dict[str, Any], int]]) -> None:
    smooth, bumpy = fresh(), fresh()
    for spec, crash_after in edits:
        for store in (smooth, bumpy):
            edited(store, spec)
        pass_over(smooth)
        bumpy.crash_after = len(bumpy.writes) + crash_after
        with contextlib.suppress(CrashError):
            pass_over(bumpy)
        bumpy.crash_after = None
        pass_over(bumpy)
        assert pass_over(bumpy) is Outcome.DONE
    assert essence(smooth) == essence(bumpy)
    assert events(smooth) == events(bumpy)


@given(specs, st.data())
def test_whatever_others_did_is_put_right(spec: dict[str, Any], data: st.DataObject) -> None:
    store = fresh()
    edited(store, spec)
    pass_over(store)
    wanted = essence(store)
    ours = [
        ref for ref in store.objects if ref.kind in {"Deployment", "Service", "ServiceAccount", "ConfigMap", "Secret"}
    ]
    for ref in data.draw(st.lists(st.sampled_from(ours), unique=True)):
        if ref.namespace == "ops":
            continue
        if data.draw(st.booleans(), label=f"delete {ref}"):
            del store.objects[ref]
        elif ref.kind == "Deployment":
            store.objects[ref]["spec"]["replicas"] = 99
        elif ref.kind == "ConfigMap":
            store.objects[ref]["data"] = {"policy.json": "{}"}
    pass_over(store)
    pass_over(store)
    assert essence(store) == wanted


def world(*children: Object, **metadata: Any) -> Observed:
    return Observed(document(**metadata), {Ref.of(child): child for child in children})


def desired(**spec: Any) -> Desired:
    return Desired(
        judge(document(spec))[1], (manifests.keys_secret(pool(spec), KEY),), manifests.children(pool(spec), SETTINGS)
    )


def test_in_an_empty_world_everything_is_made_in_order() -> None:
    kinds = [type(action) for action in plan(desired(), world(), NOW)]
    assert kinds == [Create, Apply, Apply, Apply, Apply, Apply, Emit, WriteStatus]
    last = plan(desired(), world(), NOW)[5]
    assert isinstance(last, Apply)
    assert last.manifest["kind"] == "Deployment"


def test_existing_keys_are_never_written() -> None:
    (secret,) = desired().create
    other = {**secret, "data": {"worker.key": "b3RoZXI="}}
    assert not any(isinstance(action, Create) for action in plan(desired(), world(other), NOW))


def test_a_status_is_about_the_version_it_was_read_at() -> None:
    status = plan(desired(), world(), NOW)[-1]
    assert isinstance(status, WriteStatus)
    assert status.manifest["metadata"] == {
        "name": "demo",
        "namespace": "serving",
        "uid": "uid-1",
        "resourceVersion": "10",
    }


def test_somebody_elses_object_is_left_alone() -> None:
    theirs = {**Ref("Service", "serving", "demo-workers").manifest(), "spec": {}}
    actions = plan(desired(), world(theirs), NOW)
    assert [type(action) for action in actions] == [Emit, WriteStatus]
    assert isinstance(actions[0], Emit)
    assert actions[0].event["message"] == "Service demo-workers exists and is not this pool's"


def test_orphans_of_a_pool_are_taken_in_again() -> None:
    account = deepcopy(desired().apply[0])
    del account["metadata"]["ownerReferences"]
    applied = [action for action in plan(desired(), world(account), NOW) if isinstance(action, Apply)]
    assert applied[0].manifest["kind"] == "ServiceAccount"


def test_objects_of_an_earlier_pool_are_waited_for() -> None:
    assert not leaving(world(*desired().apply))
    assert leaving(world(*desired().apply, uid="uid-2"))


def test_without_admission_nothing_is_touched() -> None:
    verdict = judge(document({"prefixCache": {"budgetMiB": 9999}}))[1]
    running = manifests.children(pool(), SETTINGS)
    kinds = [type(action) for action in plan(Desired(verdict), world(*running), NOW)]
    assert kinds == [Emit, WriteStatus]


async def test_a_status_is_written_with_its_reason_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    store = Store(document())
    status = {"conditions": [{"type": "Ready", "status": "False", "reason": "NoneReady"}]}
    manifest = {**Ref("PrefixCachePool", "serving", "demo").manifest(), "status": status}
    await Applier(store, lambda: True).act(WriteStatus(manifest))
    assert caplog.messages == ["WriteStatus PrefixCachePool serving/demo: Ready False, NoneReady"]


async def test_what_somebody_else_wrote_is_undone_with_its_field_and_manager_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    live = Ref("ConfigMap", "serving", "demo-policy").manifest()
    store = Store(live)
    edit = Edit(("data", "policy.json"), manager="kubectl-edit")
    for action in (Rewrite({**live, "data": {}}, edit), Apply(live, edit)):
        await Applier(store, lambda: True).act(action)
    assert caplog.messages == [
        f"{name} ConfigMap serving/demo-policy: data.policy.json was written by kubectl-edit"
        for name in ("Rewrite", "Apply")
    ]
