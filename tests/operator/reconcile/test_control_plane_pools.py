"""An operator works for the control plane that a pool names, and for no other's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cachefleet_core.tenancy import FleetKey
from cachefleet_operator.controlplane_client.facts_cache import no_facts
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.control_plane_pools import control_plane_of, tell_unknown
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.settings import Settings, SettingsError, load
from tests.operator.pools import SETTINGS, document
from tests.operator.store import Store

KEY = PoolKey("serving/demo")
DEPLOYMENT = Ref("Deployment", "serving", "demo-workers")
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
OF_B = SETTINGS.model_copy(
    update={
        "control_plane_name": "b",
        "control_plane": "b-controlplane-headless.ops.svc:8081",
        "control_planes": '{"default": "http://gateway:8080"}',
    }
)


class World:
    """A store with one pool, and an operator."""

    def __init__(self, settings: Settings, **spec: Any) -> None:
        self.store = Store(document(spec), child_objects.fleet_key_secret("ops", FleetKey(bytes(32))))
        self.facts_cache = no_facts()
        self.reconciler = Reconciler(
            self.store,
            Applier(self.store, lambda: True),
            settings,
            today=lambda: NOW,
            facts_cache=self.facts_cache,
        )

    async def settled(self) -> Outcome:
        while (outcome := await self.reconciler.reconcile(KEY)) is Outcome.WROTE:
            self.store.settle()
        return outcome

    def events(self) -> list[Any]:
        return [made for ref, made in self.store.objects.items() if ref.kind == "Event"]


async def test_agents_of_a_pool_report_to_the_control_plane_that_it_names() -> None:
    world = World(OF_B, controlPlane="b")
    assert await world.settled() is Outcome.DONE
    [agent] = [one for one in _containers(world) if one["name"] == "agent"]
    told = {one["name"]: one.get("value") for one in agent["env"]}
    assert told["CACHEFLEET_CONTROL_PLANE_DNS"] == "b-controlplane-headless.ops.svc:8081"


@pytest.mark.parametrize(("settings", "named"), [(SETTINGS, "b"), (OF_B, "default"), (OF_B, None)])
async def test_a_pool_of_another_control_plane_is_left_to_its_operator(settings: Settings, named: str | None) -> None:
    world = World(settings, **({"controlPlane": named} if named else {}))
    before = dict(world.store.objects)
    assert await world.settled() is Outcome.ELSEWHERE
    assert DEPLOYMENT not in world.store.objects
    assert {ref: made for ref, made in world.store.objects.items() if ref.kind != "Event"} == before
    assert world.facts_cache.pools() == {KEY}, "the name of its model counts"


async def test_a_pool_that_names_a_control_plane_that_is_not_known_is_told_once() -> None:
    world = World(OF_B, controlPlane="c")
    for _ in range(2):
        assert await world.settled() is Outcome.ELSEWHERE
    [event] = world.events()
    assert (event["type"], event["reason"]) == ("Warning", "ControlPlaneUnknown")
    assert event["message"].startswith("spec.controlPlane is c, and there are b, default: nobody serves this pool.")
    [first], [again] = (tell_unknown(document({"controlPlane": "c"}), OF_B, now=now) for now in ("1", "2"))
    assert first.event["metadata"]["name"] == again.event["metadata"]["name"]
    assert tell_unknown(document({"controlPlane": "b"}), OF_B, now="1") == []


def test_a_pool_without_a_sound_name_is_the_default_ones() -> None:
    assert [control_plane_of(document({"controlPlane": name})) for name in ("b", "", 7)] == ["b", "default", "default"]
    assert control_plane_of({"metadata": {}}) == "default"


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [("CONTROL_PLANE_NAME", "B", "CONTROL_PLANE_NAME"), ("CONTROL_PLANES", "b", "CONTROL_PLANES: is not JSON")],
)
def test_bad_names_are_refused(variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEFLEET_AGENT_IMAGE", "agent")
    monkeypatch.setenv(f"CACHEFLEET_{variable}", value)
    with pytest.raises(SettingsError, match=words):
        load()


def _containers(world: World) -> list[Any]:
    template = world.store.objects[DEPLOYMENT]["spec"]["template"]["spec"]
    return [*template["containers"], *template.get("initContainers", ())]
