"""Another writer of a pool's objects: a few edits are undone at once, then ever fewer, and it is said who and what."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from cachefleet_operator.kube.foreign_edits import Edit
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reconcile.field_conflicts import AT_ONCE, QUIET_SECONDS, Conflict, autoscaler_of
from cachefleet_runtime.kubernetes import RefusedError
from tests.operator.test_lifecycle import DEPLOYMENT, LABELS, NOW, POOL, World

SCALED = Edit(("spec", "replicas"), "kubectl", "scale", scales=True)
HPA = Edit(("spec", "replicas"), "kube-controller-manager", "scale", scales=True)
IMAGE = Edit(("spec", "template", "spec", "containers", "[engine]", "image"), "argocd", template=True)


class Fought(World):
    """A world in which somebody writes the Deployment again whenever it was set back."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(replicas=2)
        self._write = write
        self.undone = 0

    async def fight(self, *, seconds: int) -> None:
        """As the operator sees it: an event at each edit, and what it asked to be woken by."""
        end = self.today + dt.timedelta(seconds=seconds)
        while self.today < end:
            self.edited()
            version = self.deployment["metadata"]["resourceVersion"]
            await self.reconcile()
            self.store.settle()
            undone = self.deployment["metadata"]["resourceVersion"] != version
            self.undone += undone
            self.today += dt.timedelta(seconds=1 if undone else max(1, min(self.later, default=1)))

    def edited(self) -> None:
        live = self.store.objects[DEPLOYMENT]
        before = str(live["spec"])
        self._write(live["spec"])
        if str(live["spec"]) != before:
            live["metadata"]["resourceVersion"] = str(int(live["metadata"]["resourceVersion"]) + 1000)
            live["metadata"]["generation"] += 1

    @property
    def words(self) -> str:
        found = {each["type"]: each for each in self.store.objects[POOL]["status"]["conditions"]}
        return str(found["Degraded"]["message"])

    def replica_set(self, name: str, *, replicas: int, ready: int = 0, image: str = "") -> None:
        """One of the Deployment, with its present template or that with another image."""
        live = self.store.objects[DEPLOYMENT]
        template = deepcopy(live["spec"]["template"])
        template["metadata"]["labels"]["pod-template-hash"] = name
        if image:
            template["spec"]["containers"][0]["image"] = image
        ref = Ref("ReplicaSet", "serving", name)
        owners = [{"kind": "Deployment", "name": "demo-workers", "uid": live["metadata"]["uid"], "controller": True}]
        about = {"name": name, "namespace": "serving", "uid": name, "labels": LABELS, "ownerReferences": owners}
        spec, status = {"replicas": replicas, "template": template}, {"readyReplicas": ready}
        self.store.objects[ref] = {**ref.manifest(), "metadata": about, "spec": spec, "status": status}

    def replicas(self, name: str) -> int:
        return int(self.store.objects[Ref("ReplicaSet", "serving", name)]["spec"]["replicas"])


async def fought(write: Callable[[dict[str, Any]], None]) -> Fought:
    """One whose workers, a and b, are ready."""
    world = Fought(write)
    await world.settled()
    for name in "ab":
        world.pod(name)
    world.replica_set("own", replicas=2, ready=2)
    return world


def scaled(spec: dict[str, Any]) -> None:
    spec["replicas"] = 5


def other_image(spec: dict[str, Any]) -> None:
    spec["template"]["spec"]["containers"][0]["image"] = "example.org/other:1"


def other_template(spec: dict[str, Any]) -> None:
    """As a manifest with only what its writer knows."""
    other_image(spec)
    spec["template"]["metadata"]["annotations"].clear()


def other_image_and_no_pause(spec: dict[str, Any]) -> None:
    other_image(spec)
    spec["paused"] = False


async def test_a_scaler_of_the_wrong_object_is_undone_ever_less_often() -> None:
    world = Fought(scaled)
    await world.settled()
    await world.fight(seconds=AT_ONCE)
    assert world.undone == AT_ONCE
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "FieldConflict")
    assert "changes spec.replicas of Deployment demo-workers, which was set back 3 times" in world.words
    assert world.words.endswith(
        "Scale PrefixCachePool demo (cachefleet.io/v1alpha1) instead: kubectl scale pcp demo --replicas=N"
    )
    await world.fight(seconds=3600)
    assert world.undone <= AT_ONCE + 7
    assert 0 < min(world.later) <= 1800
    events = [each for ref, each in world.store.objects.items() if ref.kind == "Event"]
    assert [each["type"] for each in events if each["reason"] == "FieldConflict"] == ["Warning"]


async def test_an_edit_of_the_pool_is_carried_out_whoever_else_writes() -> None:
    world = Fought(scaled)
    await world.settled()
    await world.fight(seconds=60)
    world.edit(replicas=3)
    await world.reconcile()
    assert world.deployment["spec"]["replicas"] == 3


async def test_what_another_writes_into_the_pods_rolls_none_of_them() -> None:
    """The Deployment is paused, so its controller replaces no pod, whatever is written there."""
    world = Fought(other_image)
    await world.settled()
    for name in "ab":
        world.pod(name)
    await world.fight(seconds=30)
    assert world.deployment["spec"]["paused"]
    assert "changes spec.template.spec.containers[engine].image" in world.words
    assert world.words.endswith("(pods: spec.podTemplate)")
    world.edit(replicas=2, engine={"maxModelLen": 1024})
    await world.reconcile()
    assert not world.deployment["spec"]["paused"], "the pool's own rollouts go on"


async def test_the_request_that_sets_back_the_third_edit_pauses() -> None:
    """Between two requests another edit would start a rollout."""
    world = await fought(other_image)
    await world.fight(seconds=AT_ONCE - 1)
    world.edited()
    world.store.writes.clear()
    await world.reconcile()
    assert [ref for verb, ref in world.store.writes if ref == DEPLOYMENT] == [DEPLOYMENT]
    assert world.deployment["spec"]["paused"]


async def test_who_takes_off_the_template_s_digest_is_undone_as_seldom() -> None:
    world = await fought(other_template)
    await world.fight(seconds=300)
    assert world.undone <= AT_ONCE + 300 / 5
    assert world.deployment["spec"]["paused"]
    assert "changes spec.template" in world.words


async def test_pods_that_another_template_started_are_ended_during_the_pause() -> None:
    world = await fought(other_image)
    world.replica_set("own", replicas=1, ready=1)
    world.replica_set("theirs", replicas=2, image="example.org/other:1")
    await world.fight(seconds=AT_ONCE)
    assert world.replicas("theirs") == 2, "without a pause the Deployment's controller ends them"
    await world.settled()
    assert world.deployment["spec"]["paused"]
    assert (world.replicas("own"), world.replicas("theirs")) == (1, 0)


async def test_pods_of_another_template_that_serve_go_once_enough_of_the_pool_s_own_do() -> None:
    """Until then the Deployment's controller replaces them, as in any rollout."""
    world = await fought(other_image)
    world.replica_set("own", replicas=1, ready=1)
    world.replica_set("theirs", replicas=1, ready=1, image="example.org/other:1")
    await world.fight(seconds=AT_ONCE)
    await world.settled()
    assert not world.deployment["spec"]["paused"]
    assert world.replicas("theirs") == 1
    world.replica_set("own", replicas=2, ready=2)
    await world.settled()
    assert world.deployment["spec"]["paused"]
    assert world.replicas("theirs") == 0


async def test_nothing_is_paused_before_there_is_a_replica_set_of_the_pool_s_template() -> None:
    """During a pause none would be made, and no pod would be started."""
    world = await fought(other_image)
    world.replica_set("own", replicas=2, image="example.org/other:2")
    await world.fight(seconds=AT_ONCE)
    await world.settled()
    assert not world.deployment["spec"]["paused"]


async def test_a_failing_rollout_of_the_pool_s_own_keeps_its_old_pods_whoever_else_writes() -> None:
    world = await fought(other_image)
    await world.fight(seconds=AT_ONCE)
    world.replica_set("old", replicas=2, ready=2, image="example.org/vllm:0")
    for name in "ab":
        world.pod(name, template="old")
    world.pod("c", ready=False, waiting="CrashLoopBackOff")
    world.replica_set("own", replicas=1)
    await world.settled()
    assert world.deployment["spec"]["paused"]
    assert world.replicas("old") == 2


@pytest.mark.parametrize("refused", ["list", "scale"])
async def test_without_the_rights_it_only_pauses(refused: str) -> None:
    """Of a chart of an earlier version."""
    world = await fought(other_image)
    world.replica_set("theirs", replicas=1, image="example.org/other:1")

    def before(verb: str, ref: Ref) -> None:
        if (verb, ref.kind) == (refused, "ReplicaSet"):
            raise RefusedError(403, "Forbidden", "replicasets is forbidden")

    world.store.before = before
    await world.fight(seconds=30)
    assert world.deployment["spec"]["paused"]
    assert world.replicas("theirs") == 1
    assert world.condition("Degraded") == ("True", "FieldConflict")


async def test_who_also_ends_the_pause_is_undone_soon() -> None:
    world = Fought(other_image_and_no_pause)
    await world.settled()
    world.pod("a")
    await world.fight(seconds=300)
    assert AT_ONCE + 5 <= world.undone <= AT_ONCE + 10


async def test_once_the_other_is_quiet_all_is_as_before() -> None:
    world = Fought(other_image)
    await world.settled()
    world.pod("a")
    await world.fight(seconds=10)
    world.today += dt.timedelta(seconds=60)
    await world.settled()
    assert world.condition("Degraded") == ("True", "FieldConflict")
    world.today += dt.timedelta(seconds=QUIET_SECONDS)
    await world.settled()
    assert world.condition("Degraded") == ("False", "NothingWrong")
    assert not world.deployment["spec"]["paused"]


@pytest.mark.parametrize(
    ("edit", "paused", "waits"),
    [
        (SCALED, False, [0, 0, 0, 60, 120, 240, 480, 960, 1800, 1800]),
        (IMAGE, False, [0, 0, 0, 5, 10, 20, 40, 60, 60]),
        (IMAGE, True, [0, 0, 0, 5, 5, 5]),
    ],
)
def test_the_pauses_between_undoings(edit: Edit, paused: bool, waits: list[int]) -> None:  # noqa: FBT001  # a parameter
    found = [
        Conflict(DEPLOYMENT, edit, count, NOW, of_template=edit.template).wait(edit, NOW, paused=paused)
        for count in range(len(waits))
    ]
    assert found == waits


def test_the_object_to_scale_is_named_to_who_runs_an_autoscaler() -> None:
    words = Conflict(DEPLOYMENT, HPA, 3, NOW).message("demo")
    assert "A HorizontalPodAutoscaler (kubectl get hpa,scaledobject -n serving) has this Deployment as its" in words
    assert "name PrefixCachePool demo (cachefleet.io/v1alpha1) there" in words


async def test_an_autoscaler_that_can_be_seen_is_named() -> None:
    world = Fought(scaled)
    await world.settled()
    world.conflicts.undone({DEPLOYMENT: HPA}, NOW)
    for _ in range(AT_ONCE):
        world.conflicts.undone({DEPLOYMENT: HPA}, NOW)
    ref = Ref("HorizontalPodAutoscaler", "serving", "keda-hpa-chats")
    owner = {"kind": "ScaledObject", "name": "chats"}
    world.store.objects[ref] = {
        **ref.manifest(),
        "metadata": {"name": ref.name, "namespace": ref.namespace, "ownerReferences": [owner]},
        "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "demo-workers"}},
    }
    await world.reconcile()
    assert "HorizontalPodAutoscaler keda-hpa-chats of ScaledObject chats has this Deployment" in world.words
    assert autoscaler_of("others", [world.store.objects[ref]]) == ""


def test_other_objects_are_put_right_soon_all_the_same() -> None:
    service = Conflict(Ref("Service", "serving", "demo-workers"), Edit(("spec", "selector", "app")), 50, NOW)
    assert service.wait(service.edit, NOW, paused=False) == 5
