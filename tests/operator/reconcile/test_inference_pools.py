"""A pool's InferencePool: made, mended, deleted, and what keeps it from being made, through whole reconciliations."""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pytest

from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.status.gateway_acceptance import CONDITION, acceptance
from cachefleet_runtime.kubernetes import Object, RefusedError, RetryableError
from tests.operator.pools import SETTINGS, document
from tests.operator.store import Store

KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")
OURS = Ref("InferencePool", "serving", "demo")
DEPLOYMENT = Ref("Deployment", "serving", "demo-workers")
SERVICE: Final[Object] = Ref("Service", "serving", "picker").manifest()
ON: Final = {"inferencePool": {"enabled": True}}


class World:
    """A store with the picker's Service, and a reconciler."""

    def __init__(self, spec: Any = ON, *there: Object, picker: str = "picker:9002") -> None:
        self.store = Store(document(spec), *(there or (SERVICE,)))
        self.later: list[float] = []
        self.settings = SETTINGS.model_copy(update={"picker_service": picker})
        self.reconciler = self.restarted()

    def restarted(self) -> Reconciler:
        today = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        return Reconciler(
            self.store,
            Applier(self.store, lambda: True),
            self.settings,
            today=lambda: today,
            later=lambda _, seconds: self.later.append(seconds),
        )

    async def look(self) -> Outcome:
        return await self.reconciler.reconcile(KEY)

    def edit(self, **spec: Any) -> None:
        pool = self.store.objects[POOL]
        pool["spec"] |= spec
        pool["metadata"]["generation"] += 1

    @property
    def made(self) -> Object | None:
        return self.store.objects.get(OURS)

    @property
    def found(self) -> Object | None:
        conditions = self.store.objects[POOL]["status"]["conditions"]
        return next((each for each in conditions if each["type"] == CONDITION), None)

    @property
    def reason(self) -> str:
        return str((self.found or {}).get("reason", ""))


async def test_it_selects_the_workers_and_names_the_control_plane_as_their_picker() -> None:
    world = World()
    await world.look()
    made = world.made
    assert made is not None
    assert made["apiVersion"] == "inference.networking.k8s.io/v1"
    assert made["spec"] == {
        "selector": {"matchLabels": {"cachefleet.io/pool": "demo"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "picker",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    pods = world.store.objects[DEPLOYMENT]["spec"]["template"]
    assert made["spec"]["selector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert 8000 in {port["containerPort"] for port in pods["spec"]["containers"][0]["ports"]}
    assert world.reason == Reason.NO_GATEWAY
    assert world.later == [OperatorTimes().inference_pool_seconds]


async def test_a_worker_of_several_ranks_has_one_port() -> None:
    world = World({**ON, "engine": {"maxModelLen": 2048, "dataParallelSize": 4}})
    await world.look()
    assert world.made is not None
    assert world.made["spec"]["targetPorts"] == [{"number": 8000}]


async def test_what_the_spec_says_follows_and_nothing_is_written_twice() -> None:
    world = World()
    await world.look()
    world.edit(inferencePool={"enabled": True, "failureMode": "FailOpen"})
    await world.look()
    assert world.made is not None
    assert world.made["spec"]["endpointPickerRef"]["failureMode"] == "FailOpen"
    await world.look()
    written = len(world.store.writes)
    await world.look()
    assert len(world.store.writes) == written


async def test_labels_select_the_workers_of_several_pools() -> None:
    labels = [{"name": "example.com/fleet", "value": "tiny"}]
    world = World({"inferencePool": {"enabled": True, "labels": labels}})
    await world.look()
    assert (world.made, world.reason) == (None, Reason.WORKERS_NOT_SELECTED)
    assert world.found is not None
    assert "do not have the labels example.com/fleet=tiny of inferencePool.labels" in world.found["message"]
    world.edit(podTemplate={"metadata": {"labels": {"example.com/fleet": "tiny"}}})
    await world.look()
    assert world.made is not None
    assert world.made["spec"]["selector"] == {"matchLabels": {"example.com/fleet": "tiny"}}


@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a restart"])
async def test_it_goes_when_it_is_not_wanted_any_more(*, restarted: bool) -> None:
    world = World()
    await world.look()
    world.edit(inferencePool={"enabled": False})
    if restarted:
        world.reconciler = world.restarted()
    await world.look()
    assert (world.made, world.found) == (None, None)
    world.edit(inferencePool={"enabled": True})
    await world.look()
    assert world.made is not None


async def test_a_pool_that_wants_none_is_asked_about_once_and_nobody_where_none_are_made() -> None:
    for picker, times in (("picker:9002", 1), ("", 0)):
        world, asked = World({}, picker=picker), list[str]()
        world.store.before = lambda _, ref, asked=asked: asked.append(ref.kind)  # type: ignore[misc]
        await world.look()
        await world.look()
        assert asked.count("InferencePool") == times
        assert world.found is None
        assert world.later == []


async def test_edits_by_hand_are_undone() -> None:
    world = World()
    await world.look()
    assert world.made is not None
    before = world.made["spec"]
    world.made["spec"] = {
        **before,
        "selector": {"matchLabels": {"cachefleet.io/pool": "demo", "zone": "a"}},
        "endpointPickerRef": {**before["endpointPickerRef"], "failureMode": "FailOpen"},
        "targetPorts": [{"number": 8000}, {"number": 9000}],
        "appProtocol": "http",
    }
    await world.look()
    assert world.made is not None
    assert world.made["spec"] == {**before, "appProtocol": "http"}, "which the API server fills in"
    del world.store.objects[OURS]
    await world.look()
    assert world.made is not None


async def test_somebody_else_s_of_that_name_is_left_alone() -> None:
    theirs = {**OURS.manifest(), "spec": {"targetPorts": []}}
    for wanted in (ON, {}):
        world = World(wanted, SERVICE, theirs)
        await world.look()
        assert world.store.objects[OURS] == theirs
    world = World(ON, SERVICE, theirs)
    await world.look()
    assert world.reason == Reason.NAME_TAKEN


async def test_one_that_is_being_deleted_is_waited_for() -> None:
    world = World()
    await world.look()
    assert world.made is not None
    world.made["metadata"]["deletionTimestamp"] = "x"
    before = dict(world.made)
    world.edit(inferencePool={"enabled": True, "failureMode": "FailOpen"})
    await world.look()
    assert (world.made, world.reason) == (before, Reason.GATEWAY_PENDING)


def failing(error: Exception) -> Any:
    def before(_: str, ref: Ref) -> None:
        if ref.kind == "InferencePool":
            raise error

    return before


@pytest.mark.parametrize(
    ("error", "status"),
    [(RefusedError(403, "Forbidden", "may not"), "False"), (RetryableError(500, "Internal", "hm"), "Unknown")],
    ids=["refused", "failing"],
)
@pytest.mark.parametrize("spec", [ON, {}], ids=["wanted", "not wanted"])
async def test_what_fails_there_holds_nothing_else_up(error: Any, status: str, spec: Any) -> None:
    world = World(spec)
    world.store.before = failing(error)
    await world.look()
    assert DEPLOYMENT in world.store.objects
    found = world.found
    assert (found and found["status"], world.reason) == ((status, Reason.REFUSED) if spec else (None, ""))


async def test_without_the_crd_it_is_told_what_to_install() -> None:
    world = World()
    world.store.unserved = {"InferencePool"}
    await world.look()
    assert DEPLOYMENT in world.store.objects
    assert world.reason == Reason.INFERENCE_POOLS_NOT_SERVED
    assert world.found is not None
    assert "install the CRD inferencepools.inference.networking.k8s.io" in world.found["message"]
    written = len(world.store.writes)
    await world.look()
    assert len(world.store.writes) == written
    world.store.unserved = set()
    await world.look()
    assert world.made is not None


async def test_without_a_picker_none_is_made() -> None:
    world = World(picker="")
    await world.look()
    assert (world.made, world.reason) == (None, Reason.NO_PICKER)


async def test_the_picker_s_service_has_to_be_in_the_namespace() -> None:
    world = World(ON, Ref("Service", "ops", "picker").manifest())
    await world.look()
    assert (world.made, world.reason) == (None, Reason.PICKER_SERVICE_MISSING)
    world.store.objects[Ref.of(SERVICE)] = SERVICE
    await world.look()
    assert world.made is not None


async def test_a_spec_that_is_not_admitted_changes_nothing() -> None:
    world = World({**ON, "prefixCache": {"budgetMiB": 999_999}})
    await world.look()
    assert (world.made, world.reason) == (None, Reason.HELD)
    world.edit(prefixCache={"budgetMiB": 1})
    await world.look()
    before = dict(world.made or {})
    world.edit(prefixCache={"budgetMiB": 999_999}, inferencePool={"enabled": True, "failureMode": "FailOpen"})
    await world.look()
    assert world.made == before != {}
    world.edit(inferencePool={"enabled": False})
    await world.look()
    assert world.made == before


def live(*parents: Object, generation: int = 3) -> Object:
    return {"metadata": {"name": "demo", "generation": generation}, "status": {"parents": list(parents)}}


def parent(name: str = "edge", *, seen: int | None = 3, **conditions: str) -> Object:
    made = [
        {
            "type": kind,
            "status": status,
            "reason": "HTTPRouteNotAccepted" if status == "False" else kind,
            "message": "no\n  such route",
            **({} if seen is None else {"observedGeneration": seen}),
        }
        for kind, status in conditions.items()
    ]
    return {"parentRef": {"kind": "Gateway", "namespace": "infra", "name": name}, "conditions": made}


NOBODY: Final[Object] = {"parentRef": {"kind": "Status", "name": "default"}, "conditions": []}


@pytest.mark.parametrize(
    ("parents", "status", "reason", "words"),
    [
        ((), "Unknown", Reason.NO_GATEWAY, "no gateway has told of InferencePool demo"),
        ((NOBODY,), "Unknown", Reason.NO_GATEWAY, "no gateway has told"),
        (
            (parent(Accepted="True", ResolvedRefs="True"),),
            "True",
            Reason.ACCEPTED_BY_GATEWAYS,
            "accepted by Gateway infra/edge",
        ),
        ((parent(Accepted="True", seen=None),), "True", Reason.ACCEPTED_BY_GATEWAYS, "accepted by"),
        (
            (parent(Accepted="True"), parent("other", Accepted="True", ResolvedRefs="False")),
            "False",
            Reason.REFUSED_BY_GATEWAY,
            "Gateway infra/other: ResolvedRefs is False, HTTPRouteNotAccepted: no such route",
        ),
        ((parent(Accepted="Unknown"),), "Unknown", Reason.GATEWAY_PENDING, "by Gateway infra/edge"),
        ((parent(ResolvedRefs="True"),), "Unknown", Reason.GATEWAY_PENDING, "not accepted yet"),
        ((parent(Accepted="False", seen=2),), "Unknown", Reason.GATEWAY_PENDING, "not accepted yet, as it is now"),
        ((parent(Accepted="True", Exported="False"),), "True", Reason.ACCEPTED_BY_GATEWAYS, "accepted by"),
        (tuple(parent(f"g{n}", Accepted="True") for n in range(6)), "True", Reason.ACCEPTED_BY_GATEWAYS, "and 2 more"),
    ],
)
def test_the_condition_is_what_gateways_say(parents: Any, status: str, reason: Reason, words: str) -> None:
    found = acceptance(live(*parents))
    assert (found.type, found.status, found.reason) == (CONDITION, status, reason)
    assert words in found.message


def test_a_parent_without_conditions_or_kind_is_read() -> None:
    found = acceptance(live({"parentRef": {"name": "edge"}}))
    assert (found.status, found.message) == ("Unknown", "not accepted yet, as it is now, by Gateway edge")
