"""Fewer workers, failing rollouts, chat templates and learnt sizes, through whole reconciliations."""

from __future__ import annotations

import datetime as dt
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.fleet_status.pool_facts import ContractFacts, HitRatio, PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.tenancy import FleetKey
from cachefleet_operator.controlplane_client.facts_cache import FactsCache
from cachefleet_operator.controlplane_client.pool_facts import Facts
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.manifests import child_objects
from cachefleet_operator.operator_times import OperatorTimes
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Applier
from cachefleet_operator.reconcile.field_conflicts import FieldConflicts
from cachefleet_operator.reconcile.futile_applies import FutileApplies
from cachefleet_operator.reconcile.reconciler import Outcome, PoolKey, Reconciler
from cachefleet_operator.reconcile.rollout import digest_of
from cachefleet_operator.status.pods import DELETION_COST
from cachefleet_operator.status.volume_failures import LOOK_SECONDS
from cachefleet_runtime.kubernetes import Object, RefusedError, RetryableError
from tests.operator.pools import SETTINGS, document
from tests.operator.store import Store

KEY = PoolKey("serving/demo")
POOL = Ref("PrefixCachePool", "serving", "demo")
DEPLOYMENT = Ref("Deployment", "serving", "demo-workers")
LABELS = {"cachefleet.io/pool": "demo", "app.kubernetes.io/managed-by": "cachefleet-operator"}
CHAT = {"model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}}}
NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Source:
    """A control plane that knows what a test says."""

    def __init__(self) -> None:
        self.known: Facts = Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, "no answer")
        self.asked = 0

    async def ask(self, _key: str, *, seconds: float) -> Facts:
        assert seconds <= 2
        self.asked += 1
        return self.known


class World:
    """A store, a control plane and a reconciler over both."""

    def __init__(self, **spec: Any) -> None:
        self.store = Store(document(spec), child_objects.fleet_key_secret("ops", FleetKey(bytes(32))))
        self.source = Source()
        self.facts_cache = FactsCache(self.source, enqueue=lambda _key: None, clock=lambda: self.seconds)
        self.seconds = 0.0
        self.today = NOW
        self.later: list[float] = []
        self.futile = FutileApplies()
        self.conflicts = FieldConflicts()

    async def reconcile(self) -> Outcome:
        self.later.clear()
        self.seconds += 10
        applier = Applier(self.store, lambda: True)
        reconciler = Reconciler(
            self.store,
            applier,
            SETTINGS,
            today=lambda: self.today,
            facts_cache=self.facts_cache,
            later=lambda _key, seconds: self.later.append(seconds),
        )
        reconciler._futile, reconciler._conflicts = self.futile, self.conflicts
        return await reconciler.reconcile(KEY)

    async def settled(self) -> None:
        while await self.reconcile() is Outcome.WROTE:
            self.store.settle()

    def edit(self, **spec: Any) -> None:
        live = self.store.objects[POOL]
        version = str(int(live["metadata"]["resourceVersion"]) + 1000)
        generation = live["metadata"]["generation"] + 1
        self.store.objects[POOL] = {**document(spec, resourceVersion=version, generation=generation)}
        self.store.objects[POOL]["status"] = live.get("status", {})

    def pod(self, name: str, *, ready: bool = True, waiting: str = "", template: str | None = None) -> None:
        live = self.store.objects[DEPLOYMENT]
        mark = {"cachefleet.io/template": digest_of(live) if template is None else template}
        state = {"name": "engine", "restartCount": 3, "state": {"waiting": {"reason": waiting, "message": "m"}}}
        self.store.objects[Ref("Pod", "serving", name)] = {
            **Ref("Pod", "serving", name).manifest(),
            "metadata": {
                "name": name,
                "namespace": "serving",
                "uid": name,
                "labels": LABELS,
                "annotations": mark,
                "ownerReferences": [{"kind": "ReplicaSet", "name": "demo-workers-1", "controller": True}],
            },
            "status": {
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [state] if waiting else [],
            },
        }

    def knows(self, **worth: float) -> None:
        members = tuple(WorkerFacts(name=name, cache_value=value) for name, value in worth.items())
        self.source.known = Facts(
            PoolDetail(key="p/q", contract=ContractFacts("sha256:x"), hit_ratio=HitRatio(), members=members)
        )

    @property
    def deployment(self) -> Object:
        return self.store.objects[DEPLOYMENT]

    def condition(self, kind: str) -> tuple[str, str]:
        found = {each["type"]: each for each in self.store.objects[POOL]["status"]["conditions"]}
        return found[kind]["status"], found[kind]["reason"]

    def message(self, kind: str) -> str:
        found = {each["type"]: each for each in self.store.objects[POOL]["status"]["conditions"]}
        return str(found[kind]["message"])

    def cost(self, name: str) -> str | None:
        found = self.store.objects[Ref("Pod", "serving", name)]["metadata"]["annotations"].get(DELETION_COST)
        return None if found is None else str(found)


async def three_pods(**worth: float) -> World:
    world = World(replicas=3)
    await world.settled()
    for name in "abc":
        world.pod(name)
    world.knows(**worth)
    await world.settled()
    world.store.writes.clear()
    return world


async def test_costs_are_written_before_replicas_go_down() -> None:
    world = await three_pods(a=5.0, b=1.0, c=9.0)
    asked = world.source.asked
    world.knows(a=5.0, b=7.0, c=1.0)
    world.edit(replicas=2)
    await world.reconcile()
    assert world.source.asked == asked + 1
    assert [world.cost(name) for name in "abc"] == ["1", "2", "0"]
    written = [ref.kind for _, ref in world.store.writes if ref.kind in {"Pod", "Deployment"}]
    assert written == ["Pod", "Pod", "Pod", "Deployment"]
    world.store.settle()
    await world.settled()
    world.store.writes.clear()
    assert await world.reconcile() is Outcome.DONE
    assert world.store.writes == []


async def test_costs_are_written_when_a_rollout_begins_and_not_when_workers_are_added() -> None:
    world = await three_pods(a=5.0, b=1.0, c=9.0)
    world.edit(replicas=4)
    await world.reconcile()
    assert [world.cost(name) for name in "abc"] == [None] * 3
    world.edit(replicas=4, engine={"image": "b:2"})
    await world.reconcile()
    assert [world.cost(name) for name in "abc"] == ["1", "0", "2"]


async def test_nobody_knowing_stops_nothing() -> None:
    world = World(replicas=3)
    await world.settled()
    world.pod("a")
    world.edit(replicas=1)
    await world.reconcile()
    assert world.cost("a") is None
    assert world.deployment["spec"]["replicas"] == 1


@pytest.mark.parametrize("error", [RetryableError(409, "Conflict", "uid"), RefusedError(403, "Forbidden", "no")])
async def test_a_note_that_is_refused_stops_nothing(error: Exception) -> None:
    world = await three_pods(a=5.0, b=1.0, c=9.0)

    def before(verb: str, ref: Ref) -> None:
        if (verb, ref.kind) == ("patch", "Pod"):
            raise error

    world.store.before = before
    world.edit(replicas=2)
    await world.reconcile()
    assert world.deployment["spec"]["replicas"] == 2


async def test_a_note_that_nobody_took_is_tried_again_first() -> None:
    world = await three_pods(a=5.0, b=1.0, c=9.0)

    def before(verb: str, ref: Ref) -> None:
        if (verb, ref.kind) == ("patch", "Pod"):
            raise RetryableError(503, "Unavailable", "later")

    world.store.before = before
    world.edit(replicas=2)
    with pytest.raises(RetryableError):
        await world.reconcile()
    assert world.deployment["spec"]["replicas"] == 3


async def test_a_failing_rollout_stands_still_and_a_change_sets_it_going() -> None:
    world = await three_pods()
    old = digest_of(world.deployment)
    world.edit(replicas=3, engine={"image": "b:2"})
    await world.reconcile()
    for name in "abc":
        world.pod(name, template=old)
    world.pod("d", ready=False, waiting="ImagePullBackOff")
    await world.reconcile()
    assert world.deployment["spec"]["paused"] is True
    await world.reconcile()
    assert world.condition("Progressing") == ("False", "RolloutPaused")
    assert world.condition("Degraded") == ("True", "RolloutPaused")
    assert await world.reconcile() is Outcome.DONE
    world.edit(replicas=3, engine={"image": "c:3"})
    await world.reconcile()
    assert world.deployment["spec"]["paused"] is False


async def test_a_low_hit_ratio_stops_no_rollout() -> None:
    world = await three_pods()
    world.edit(replicas=3, engine={"image": "b:2"}, hit={"objective": {"ratio": 0.9, "windowSeconds": 600}})
    await world.reconcile()
    world.pod("a", template="old")
    world.pod("d", ready=False)
    world.source.known = Facts(
        PoolDetail(
            key="p/q", contract=ContractFacts("f"), hit_ratio=HitRatio(0.01, 600), members=(WorkerFacts(name="a"),)
        )
    )
    await world.facts_cache.round()
    await world.reconcile()
    assert world.condition("HitRateMet") == ("False", "BelowObjective")
    assert world.deployment["spec"]["paused"] is False


async def test_the_chat_template_is_part_of_a_pod() -> None:
    world = World(**CHAT)
    await world.reconcile()
    assert world.condition("ConfigValid") == ("False", "ChatTemplateMissing")
    assert DEPLOYMENT not in world.store.objects
    assert OperatorTimes().chat_template_seconds in world.later
    text = Ref("ConfigMap", "serving", "t").manifest()
    marks = set()
    for words in ("one", "two"):
        world.store.objects[Ref.of(text)] = {**text, "data": {"k": words}}
        await world.settled()
        marks.add(digest_of(world.deployment))
    assert len(marks) == 2
    del world.store.objects[Ref.of(text)]["data"]["k"]
    await world.settled()
    assert digest_of(world.deployment) in marks
    assert world.condition("ConfigValid") == ("False", "ChatTemplateMissing")


async def test_the_size_of_a_token_is_learnt_and_the_verdict_stands() -> None:
    world = World(model={"kvBytesPerToken": None})
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("Unknown", "BytesPerTokenUnknown")
    world.source.known = Facts(PoolDetail(key="p/q", members=(WorkerFacts(name="a", block_bytes=16 * 1024),)))
    await world.facts_cache.round()
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("True", "Admitted")
    world.source.known = Facts(None, Reason.CONTROL_PLANE_UNREACHABLE, "gone")
    world.facts_cache.drop(KEY)
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("True", "Admitted")
    assert world.condition("IndexFresh") == ("Unknown", "ControlPlaneUnreachable")
    world.edit(model={"kvBytesPerToken": None}, replicas=1)
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("Unknown", "BytesPerTokenUnknown")


async def test_another_size_of_a_block_is_not_judged_by_blocks_of_the_old_one() -> None:
    world = World(model={"kvBytesPerToken": None}, engine={"blockSize": 64, "maxModelLen": 2048})
    await world.settled()
    old = WorkerFacts(name="a", block_bytes=64 * 1024 * 1024)
    world.source.known = Facts(PoolDetail(key="p/q", contract=ContractFacts("f", block_size=64), members=(old,)))
    await world.facts_cache.round()
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("True", "Admitted")
    world.edit(model={"kvBytesPerToken": None}, engine={"blockSize": 16, "maxModelLen": 2048})
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("True", "Admitted")


async def test_workers_that_are_to_be_replaced_refuse_nothing() -> None:
    """Two devices for each worker instead of one: what those of one device need says nothing against it."""
    world = World(engine={"maxModelLen": 2048})
    await world.settled()
    world.pod("old")
    world.source.known = Facts(PoolDetail(key="p/q", members=(WorkerFacts(name="old", block_bytes=64 * 1024 * 1024),)))
    await world.facts_cache.round()
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("False", "RunningShareTooSmall")
    before = digest_of(world.deployment)
    world.edit(engine={"maxModelLen": 2048, "tensorParallelSize": 2})
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("True", "Admitted")
    assert digest_of(world.deployment) != before
    world.pod("new")
    new = WorkerFacts(name="new", block_bytes=128 * 1024 * 1024)
    world.source.known = Facts(PoolDetail(key="p/q", members=(WorkerFacts(name="old", block_bytes=16), new)))
    await world.facts_cache.round()
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("False", "RunningShareTooSmall")
    replicas = world.deployment["spec"]["replicas"]
    world.edit(engine={"maxModelLen": 2048, "tensorParallelSize": 2}, replicas=replicas + 1)
    await world.settled()
    assert world.condition("BudgetAdmitted") == ("False", "RunningShareTooSmall")
    assert world.deployment["spec"]["replicas"] == replicas


async def test_how_pods_fail_that_a_node_refuses_is_told() -> None:
    world = World(replicas=1)
    await world.settled()
    failed = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}
    world.pod("a", ready=False)
    world.store.objects[Ref("Pod", "serving", "a")]["status"] = failed
    world.store.objects[Ref("Pod", "serving", "a")]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    world.deployment["status"]["readyReplicas"] = 0
    await world.reconcile()
    said = {each["type"]: each["message"] for each in world.store.objects[POOL]["status"]["conditions"]}
    assert "UnexpectedAdmissionError: no device" in said["WorkersAvailable"]
    assert "UnexpectedAdmissionError: no device" in said["Ready"]


async def test_a_pod_without_a_node_is_looked_at_again() -> None:
    world = await three_pods()
    pod = world.store.objects[Ref("Pod", "serving", "a")]
    since = (NOW - dt.timedelta(seconds=1)).isoformat()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since}
    pod["status"]["conditions"] = [unscheduled]
    await world.reconcile()
    assert world.later == [OperatorTimes().unschedulable_seconds - 1]


async def test_what_events_say_of_a_pod_without_its_volume_is_told() -> None:
    world = await three_pods()
    pod = world.store.objects[Ref("Pod", "serving", "a")]
    since = (NOW - dt.timedelta(seconds=30)).isoformat()
    pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]}
    for name, uid in (("one", "a"), ("other", "b")):
        event = {**Ref("Event", "serving", name).manifest(), "involvedObject": {"uid": uid}, "reason": "FailedMount"}
        world.store.objects[Ref("Event", "serving", name)] = {**event, "message": name, "lastTimestamp": since}
    await world.reconcile()
    assert world.condition("Degraded") == ("True", "VolumeUnavailable")
    said = {each["type"]: each["message"] for each in world.store.objects[POOL]["status"]["conditions"]}
    assert "pod a: FailedMount: one" in said["Degraded"]
    assert world.later == [LOOK_SECONDS]


async def test_rights_of_an_earlier_version_keep_no_pool_back() -> None:
    def forbidden(verb: str, ref: Ref) -> None:
        if (verb, ref.kind) == ("list", "Event"):
            raise RefusedError(403, "Forbidden", "events is forbidden")

    world = await three_pods()
    since = (NOW - dt.timedelta(seconds=30)).isoformat()
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    world.store.objects[Ref("Pod", "serving", "a")]["status"] = {"conditions": [scheduled]}
    world.store.before = forbidden
    assert await world.reconcile() in {Outcome.DONE, Outcome.WROTE}


worlds = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.booleans(), st.sampled_from(["", "CrashLoopBackOff"]), st.sampled_from(["", None])
    )
)


@given(
    worlds,
    st.integers(0, 3),
    st.sampled_from(["a:1", "b:2"]),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 9)),
)
async def test_whatever_pods_say_a_plan_carried_out_leaves_nothing(
    said: list[tuple[str, bool, str, str | None]], replicas: int, image: str, worth: dict[str, float]
) -> None:
    world = World(replicas=3)
    await world.settled()
    for name, ready, waiting, template in said:
        world.pod(name, ready=ready, waiting=waiting, template=template)
    world.knows(**worth)
    world.edit(replicas=replicas, engine={"image": image})
    for _ in range(4):
        await world.reconcile()
        world.store.settle()
    world.store.writes.clear()
    assert await world.reconcile() is Outcome.DONE
    assert world.store.writes == []


async def becomes_ready_and_stays(world: World) -> None:
    """Ready after a few looks, and nothing is written at the next."""
    for _ in range(4):
        await world.reconcile()
        world.store.settle()
    assert world.condition("Ready") == ("True", "WorkersReady")
    world.store.writes.clear()
    assert await world.reconcile() is Outcome.DONE
    assert world.store.writes == []


class Rewriting(Store):
    """With an admission webhook that takes images from a mirror."""

    async def apply(self, manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        if manifest["kind"] == "Deployment":
            manifest = deepcopy(manifest)
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["image"] = f"mirror.example.org/{container['image']}"
        return await super().apply(manifest, subresource=subresource, dry_run=dry_run)


async def test_what_a_webhook_rewrites_is_not_written_for_ever_and_the_pool_is_ready() -> None:
    world = World(replicas=1)
    world.store = Rewriting(*world.store.objects.values())
    await becomes_ready_and_stays(world)
    world.edit(replicas=2)
    assert await world.reconcile() is Outcome.WROTE
    assert world.deployment["spec"]["replicas"] == 2
    world.deployment["spec"]["replicas"] = 7  # somebody else
    assert await world.reconcile() is Outcome.WROTE
    assert world.deployment["spec"]["replicas"] == 2


class Injecting(Store):
    """With an admission webhook that gives each container of a Deployment a variable."""

    def _store(self, verb: str, ref: Ref, value: Object) -> Object:
        if ref.kind == "Deployment":
            for container in value["spec"]["template"]["spec"]["containers"]:
                names = {each["name"] for each in container["env"]}
                container["env"] += [] if "INJECTED" in names else [{"name": "INJECTED", "value": "1"}]
        return super()._store(verb, ref, value)


async def test_what_a_webhook_adds_to_our_containers_is_not_taken_away_for_ever() -> None:
    world = World(replicas=1)
    world.store = Injecting(*world.store.objects.values())
    await becomes_ready_and_stays(world)


async def test_a_pod_that_loses_one_label_after_another_gets_both_back_and_keeps_its_cost() -> None:
    world = World(replicas=2)
    await world.settled()
    for name in ("a", "b"):
        world.pod(name)
    world.knows(a=1.0, b=2.0)
    world.edit(replicas=1)
    await world.settled()
    pod = world.store.objects[Ref("Pod", "serving", "b")]
    del pod["metadata"]["ownerReferences"]
    pod["metadata"] |= {"generateName": "demo-workers-5d9c-"}
    labels = {**LABELS, "pod-template-hash": "5d9c"}
    for lost in ("cachefleet.io/pool", "pod-template-hash"):
        left = {name: value for name, value in labels.items() if name != lost}
        world.store.objects[Ref("Pod", "serving", "b")]["metadata"]["labels"] = left
        await world.settled()
        assert world.store.objects[Ref("Pod", "serving", "b")]["metadata"]["labels"] == labels
        assert world.cost("b") == "1"


async def test_pods_of_the_label_that_are_not_the_pools_are_told_and_not_counted() -> None:
    world = await three_pods()
    for name, owner in (("bare", []), ("theirs", [{"kind": "ReplicaSet", "name": "other-1", "controller": True}])):
        world.pod(name)
        world.store.objects[Ref("Pod", "serving", name)]["metadata"]["ownerReferences"] = owner
    world.store.objects[Ref("Pod", "serving", "bare")]["metadata"]["labels"] = {"cachefleet.io/pool": "demo"}
    await world.reconcile()
    status = world.store.objects[POOL]["status"]
    assert status["foreignPods"] == ["bare", "theirs"]
    assert [each["name"] for each in status["workers"]] == ["a", "b", "c"]
    assert world.condition("Degraded") == ("True", "ForeignPods")
    assert world.condition("Ready") == ("True", "WorkersReady")
    said = {each["type"]: each["message"] for each in status["conditions"]}
    assert said["Degraded"].endswith("bare, theirs; take the label cachefleet.io/pool off them, or delete them")
    for name in ("bare", "theirs"):
        del world.store.objects[Ref("Pod", "serving", name)]
    await world.reconcile()
    assert "foreignPods" not in world.store.objects[POOL]["status"]
    assert world.condition("Degraded") == ("False", "NothingWrong")


async def test_what_somebody_adds_is_taken_away_once() -> None:
    world = World(replicas=1)
    await world.settled()
    service = world.store.objects[Ref("Service", "serving", "demo-workers")]
    service["spec"]["selector"]["extra"] = "x"
    world.store.writes.clear()
    assert await world.reconcile() is Outcome.WROTE
    assert [ref.kind for _, ref in world.store.writes] == ["Service", "Service"]
    assert "extra" not in world.store.objects[Ref("Service", "serving", "demo-workers")]["spec"]["selector"]
    assert await world.reconcile() is Outcome.DONE


async def test_an_event_that_may_not_be_told_keeps_no_status_back() -> None:
    world = World(prefixCache={"budgetMiB": 100_000})

    def quota(verb: str, ref: Ref) -> None:
        if (verb, ref.kind) == ("create", "Event"):
            raise RefusedError(403, "Forbidden", "exceeded quota: events")

    world.store.before = quota
    assert await world.reconcile() is Outcome.WROTE
    assert world.condition("ConfigValid") == ("True", "Valid")
    assert world.condition("BudgetAdmitted")[0] == "False"
