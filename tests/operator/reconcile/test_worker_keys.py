"""The Secret of a pool's keys: compared with the fleet key, put right, or told; pods that hold others are replaced."""

from __future__ import annotations

import base64
import datetime as dt
from copy import deepcopy
from typing import Any

import pytest

from cachefleet_core.tenancy import FleetKey
from cachefleet_operator import names
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.reconcile.worker_keys import REPAIR_PAUSE
from cachefleet_runtime.kubernetes import Object, RefusedError, RetryableError
from tests.operator.pools import SETTINGS, document, pool
from tests.operator.store import CrashError, Store

KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")
FLEET_KEY = Ref("Secret", "ops", "cachefleet-fleet-key")
KEYS = Ref("Secret", "serving", "demo-worker-keys")
DEPLOYMENT = Ref("Deployment", "serving", "demo-workers")
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class World:
    """A pool whose objects were made from one fleet key, and the hour."""

    def __init__(self) -> None:
        self.now = START
        self.store = Store(document(), child_objects.fleet_key_secret("ops", FleetKey(bytes(32))))
        self.later = list[float]()

    async def reconcile(self) -> Outcome:
        applier = Applier(self.store, lambda: True)
        given = Reconciler(
            self.store,
            applier,
            SETTINGS,
            today=lambda: self.now,
            later=lambda _key, seconds: self.later.append(seconds),
        )
        return await given.reconcile(KEY)

    def edit(self, *, at: str = "2026-01-01T01:00:00Z", **data: str) -> None:
        secret = self.store.objects[KEYS]
        for name, text in data.items():
            secret["data"][name.replace("_", ".")] = base64.b64encode(text.encode()).decode()
        secret["metadata"]["managedFields"] = [
            {"manager": "cachefleet-operator", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kubectl-edit", "time": at},
        ]

    def run_pod(self, name: str, since: str | None) -> None:
        state = {"running": {"startedAt": since}} if since else {"waiting": {"reason": "ContainerCreating"}}
        owner = {"kind": "ReplicaSet", "name": "demo-workers-1", "controller": True}
        metadata: dict[str, Any] = {"name": name, "namespace": "serving", "uid": name, "labels": names.labels(pool())}
        metadata |= {"ownerReferences": [owner]}
        status = {"containerStatuses": [{"name": "engine", "state": state}], "phase": "Running"}
        ref = Ref("Pod", "serving", name)
        self.store.objects[ref] = {**ref.manifest(), "metadata": metadata, "status": status}

    def change_fleet_key(self) -> None:
        self.store.objects[FLEET_KEY]["data"] = child_objects.fleet_key_secret("ops", FleetKey(b"1" * 32))["data"]

    @property
    def data(self) -> dict[str, str]:
        data: dict[str, str] = self.store.objects[KEYS]["data"]
        return data

    @property
    def mark(self) -> str:
        annotations = self.store.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["cachefleet.io/keys"])

    def condition(self, kind: str) -> Object:
        conditions: list[Object] = self.store.objects[POOL]["status"]["conditions"]
        return next(each for each in conditions if each["type"] == kind)


def wanted(key: bytes = bytes(32)) -> dict[str, str]:
    data: dict[str, str] = child_objects.keys_secret(pool(), FleetKey(key))["data"]
    return data


@pytest.fixture
async def world() -> World:
    made = World()
    await made.reconcile()
    made.store.settle()
    await made.reconcile()
    assert made.data == wanted()
    return made


@pytest.mark.parametrize("data", [{"worker_key": "other"}, {"index_key": "other"}])
async def test_a_changed_secret_is_put_right(world: World, data: dict[str, str]) -> None:
    mark = world.mark
    world.run_pod("demo-a", "2026-01-01T00:10:00Z")
    world.edit(**data)
    assert await world.reconcile() is Outcome.WROTE
    assert world.data == wanted()
    assert world.mark == mark, "pods that run since before the change hold the right keys"
    assert all(text not in mark for text in wanted().values())
    assert await world.reconcile() is Outcome.DONE


@pytest.mark.parametrize("since", ["2026-01-01T00:59:30Z", "2026-01-01T01:10:00Z", None])
async def test_pods_that_may_hold_other_keys_are_replaced(world: World, since: str | None) -> None:
    mark = world.mark
    world.run_pod("demo-a", "2026-01-01T00:10:00Z")
    world.run_pod("demo-b", since)
    world.edit(worker_key="other")
    await world.reconcile()
    assert (world.data, world.mark) == (wanted(), f"{mark}-1")
    await world.reconcile()
    assert world.mark == f"{mark}-1"
    world.now += REPAIR_PAUSE
    world.edit(worker_key="other")
    await world.reconcile()
    assert world.mark == f"{mark}-2"
    del world.store.objects[KEYS]
    await world.reconcile()
    assert world.data == wanted()
    assert world.mark == f"{mark}-2", "a Secret that was gone was read by nobody"


async def test_one_that_died_after_the_repair_replaces_them_all_the_same(world: World) -> None:
    mark = world.mark
    world.run_pod("demo-b", None)
    world.edit(worker_key="other")
    world.store.writes.clear()
    world.store.crash_after = 1
    with pytest.raises(CrashError):
        await world.reconcile()
    assert world.store.writes == [("update", KEYS)]
    world.store.crash_after = None
    await world.reconcile()
    assert world.mark == f"{mark}-1"


async def test_who_rewrites_it_again_and_again_is_told_of_and_replaces_no_pods(world: World) -> None:
    world.edit(worker_key="other")
    world.run_pod("demo-b", None)
    await world.reconcile()
    mark = world.mark
    world.edit(worker_key="other")
    world.now += dt.timedelta(minutes=1)
    world.later.clear()
    await world.reconcile()
    assert world.condition("KeysBroken")["reason"] == "KeysRewritten"
    assert "2026-01-01T00:10:00Z" in world.condition("KeysBroken")["message"]
    assert world.condition("Ready")["status"] == "False"
    assert world.later, "it is looked at again"
    assert (world.mark, world.data["worker.key"]) == (mark, base64.b64encode(b"other").decode())
    world.now += REPAIR_PAUSE
    await world.reconcile()
    assert world.data == wanted()


async def test_another_fleet_key_is_told_and_nothing_is_overwritten(world: World) -> None:
    mark = world.mark
    world.change_fleet_key()
    await world.reconcile()
    assert (world.data, world.mark) == (wanted(), mark)
    for kind, status in {"KeysBroken": "True", "ConfigValid": "False", "Ready": "False"}.items():
        assert (world.condition(kind)["status"], world.condition(kind)["reason"]) == (status, "FleetKeyChanged")
    assert "delete Secret demo-worker-keys" in world.condition("KeysBroken")["message"]
    del world.store.objects[KEYS]  # as the message says
    await world.reconcile()
    assert world.data == wanted(b"1" * 32)
    assert world.mark.partition("-")[0] != mark
    await world.reconcile()
    assert world.condition("KeysBroken")["status"] == "False"


async def test_the_old_fleet_key_put_back_is_enough(world: World) -> None:
    mark = world.mark
    world.change_fleet_key()
    await world.reconcile()
    world.store.objects[FLEET_KEY] = child_objects.fleet_key_secret("ops", FleetKey(bytes(32)))
    await world.reconcile()
    assert (world.data, world.mark) == (wanted(), mark)
    assert world.condition("KeysBroken")["reason"] == "KeysHeld"


async def test_a_lost_fleet_key_is_not_made_anew_for_workers_that_hold_the_old_one(world: World) -> None:
    del world.store.objects[FLEET_KEY]
    await world.reconcile()
    assert FLEET_KEY not in world.store.objects
    assert world.condition("KeysBroken")["reason"] == "FleetKeyBroken"
    assert "put it back" in world.condition("KeysBroken")["message"]


async def test_a_fleet_key_that_may_not_be_read_is_told(world: World) -> None:
    def refuse(_verb: str, ref: Ref) -> None:
        if ref == FLEET_KEY:
            raise RefusedError(403, "Forbidden", "secrets is forbidden")

    world.store.before = refuse
    await world.reconcile()
    assert "secrets is forbidden" in world.condition("KeysBroken")["message"]


async def test_a_pool_of_an_earlier_release_is_marked_once(world: World) -> None:
    mark = world.mark
    del world.store.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["annotations"]["cachefleet.io/keys"]
    await world.reconcile()
    assert world.mark == mark


async def test_an_earlier_release_s_wrong_secret_is_told_since_nobody_knows_which_of_both_is_new(world: World) -> None:
    del world.store.objects[DEPLOYMENT]["spec"]["template"]["metadata"]["annotations"]["cachefleet.io/keys"]
    world.edit(worker_key="other")
    await world.reconcile()
    assert world.condition("KeysBroken")["reason"] == "FleetKeyChanged"


async def test_a_wrong_secret_of_somebody_else_is_not_overwritten(world: World) -> None:
    world.edit(worker_key="other")
    metadata: dict[str, Any] = world.store.objects[KEYS]["metadata"]
    metadata.pop("labels")
    metadata.pop("ownerReferences")
    assert await world.reconcile() is Outcome.REFUSED
    assert world.condition("ConfigValid")["message"] == "Secret demo-worker-keys exists and is not this pool's"
    assert world.data["worker.key"] == base64.b64encode(b"other").decode()


async def test_an_orphan_s_keys_are_put_right(world: World) -> None:
    """As after a deletion that left the objects, and a pool of another model under the same name."""
    world.store.objects[KEYS]["metadata"].pop("ownerReferences")
    world.edit(index_key="of another model")
    await world.reconcile()
    assert world.data == wanted()
    assert world.store.objects[KEYS]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


async def test_what_changed_meanwhile_is_read_again(world: World) -> None:
    world.edit(worker_key="other")

    def race(verb: str, ref: Ref) -> None:
        if (verb, ref) == ("update", KEYS):
            world.store.objects[KEYS]["metadata"]["resourceVersion"] = "9999"

    world.store.before = race
    with pytest.raises(RetryableError):
        await world.reconcile()
    world.store.before = lambda _verb, _ref: None
    await world.reconcile()
    assert world.data == wanted()


@pytest.mark.parametrize(
    "edit",
    [{"prefixCache": {"budgetMiB": 9999}}, {"role": "Nonsense"}, {"podTemplate": {"nonsense": 1}}],
    ids=["budget", "unreadable", "pod template"],
)
async def test_keys_are_put_right_also_while_an_edit_is_refused(world: World, edit: dict[str, Any]) -> None:
    """Workers of the spec in force may start at any time, and read them then."""
    mark = world.mark
    world.run_pod("demo-b", None)
    world.store.objects[POOL]["metadata"]["generation"] += 1
    before = deepcopy(world.store.objects[POOL]["spec"])
    world.store.objects[POOL]["spec"] |= edit
    await world.reconcile()
    del world.store.objects[KEYS]
    await world.reconcile()
    assert world.data == wanted()
    world.edit(worker_key="other")
    await world.reconcile()
    assert (world.data, world.mark) == (wanted(), mark)
    world.store.objects[POOL]["metadata"]["generation"] += 1
    world.store.objects[POOL]["spec"] = before
    await world.reconcile()
    assert world.mark == f"{mark}-1", "pods that may hold others are replaced as soon as pods may be made"
