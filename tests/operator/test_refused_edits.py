"""What is in force while a pool's present spec is refused, through whole reconciliations."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from cachefleet_core.fleet_status.pool_facts import ContractFacts, PoolDetail
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.pool.admitted import in_force
from cachefleet_operator.controlplane_client.pool_facts import Facts
from cachefleet_operator.kube.objects import Ref
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.reconciler import Outcome
from cachefleet_runtime.kubernetes import Object, RefusedError
from tests.operator.test_lifecycle import DEPLOYMENT, KEY, POOL, World

POLICY = Ref("ConfigMap", "serving", "demo-policy")
TOO_MUCH = {"prefixCache": {"budgetMiB": 9999}}


def file(world: World) -> tuple[int, int]:
    """Generation and budget of the policy that agents read at their start."""
    text = json.loads(world.store.objects[POLICY]["data"]["policy.json"])
    return text["generation"], text["budget_mib"]


def followed(world: World) -> tuple[int, int]:
    """Generation and budget that a control plane follows which starts now."""
    found = in_force(world.store.objects[POOL])
    assert found.admitted
    return found.pool.metadata.generation, found.pool.spec.prefix_cache.budget_mib


@pytest.mark.parametrize(
    "edit",
    [
        TOO_MUCH,
        {"prefixCache": {"budgetMiB": 8}, "podTemplate": {"nonsense": 1}},
        {"prefixCache": {"budgetMiB": 8}, "role": "Nonsense"},
        {"prefixCache": {"budgetMiB": 8}, "model": {"chatTemplate": {"configMapKeyRef": {"name": "t", "key": "k"}}}},
    ],
    ids=["budget", "pod template", "unreadable", "chat template"],
)
async def test_a_refused_edit_is_in_force_nowhere(edit: dict[str, Any]) -> None:
    world = World()
    await world.settled()
    world.edit(**edit)
    await world.settled()
    assert followed(world) == file(world) == (1, 512)
    world.edit(prefixCache={"budgetMiB": 256})
    await world.settled()
    assert followed(world) == file(world) == (3, 256)


async def test_what_the_api_server_refuses_is_not_in_force() -> None:
    world = World()
    await world.settled()

    def refuse(verb: str, ref: Ref) -> None:
        if verb == "patch" and ref.kind == "Deployment":
            raise RefusedError(422, "Invalid", "no such field")

    world.store.before = refuse
    world.edit(prefixCache={"budgetMiB": 8}, podTemplate={"spec": {"nonsense": 1}})
    assert await world.reconcile() is Outcome.REFUSED
    assert followed(world) == file(world) == (1, 512)


@pytest.mark.parametrize("refused", ["Deployment", "PrefixCachePool", "ConfigMap"])
async def test_an_edit_that_is_refused_in_any_object_touches_none(refused: str) -> None:
    """Of what is applied before it, and where the status that would admit it is refused."""
    world = World(replicas=2)
    await world.settled()
    before = {ref: each for ref, each in world.store.objects.items() if ref != POOL}
    apply = world.store.apply

    async def refuse(manifest: Object, **how: Any) -> Object:
        admits = manifest.get("status", {}).get("admitted", {}).get("generation", 2) == 2
        if manifest["kind"] == refused and admits:
            raise RefusedError(422, "Invalid", "no such text")
        return await apply(manifest, **how)

    world.store.apply = refuse  # type: ignore[method-assign]  # of this store alone
    world.edit(prefixCache={"budgetMiB": 8}, rollout={"maxUnavailable": 2}, engine={"env": [{"name": "A"}]})
    assert await world.reconcile() is Outcome.REFUSED
    events = {ref for ref in world.store.objects if ref.kind == "Event"}
    assert {ref: each for ref, each in world.store.objects.items() if ref not in {POOL, *events}} == {
        ref: each for ref, each in before.items() if ref not in events
    }
    assert followed(world) == file(world) == (1, 512)
    assert world.condition("ConfigValid") == ("False", "Refused")


IMAGE = {"model": {"source": "oci://registry.example/acme/tiny:1"}}


def without_images(manifest: Object) -> Object:
    """As a server keeps it that knows no volumes made of images."""
    made = deepcopy(manifest)
    for volume in made.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ()):
        volume.pop("image", None)
    return made


@pytest.mark.parametrize("answer", ["kept less", "refused"])
@pytest.mark.parametrize("edits", [False, True], ids=["new", "edit"])
async def test_where_the_server_drops_volumes_of_images_no_pod_is_made_of_them(answer: str, *, edits: bool) -> None:
    world = World(**({} if edits else IMAGE))
    apply = world.store.apply

    async def old(manifest: Object, **how: Any) -> Object:
        if answer == "refused" and without_images(manifest) != manifest:
            raise RefusedError(
                422, "Invalid", "spec.template.spec.volumes[9]: Required value: must specify a volume type"
            )
        return await apply(without_images(manifest), **how)

    world.store.apply = old  # type: ignore[method-assign]  # of this store alone
    if edits:
        await world.settled()
        world.edit(**IMAGE)
    before = world.store.objects.get(DEPLOYMENT)
    assert await world.reconcile() is Outcome.REFUSED
    assert world.store.objects.get(DEPLOYMENT) == before
    assert world.condition("ConfigValid") == ("False", "ImageVolumesUnsupported")
    assert "1.35" in world.message("ConfigValid")
    world.store.apply = apply  # type: ignore[method-assign]  # the server was upgraded
    await world.settled()
    volumes = world.store.objects[DEPLOYMENT]["spec"]["template"]["spec"]["volumes"]
    assert [volume["image"]["reference"] for volume in volumes if "image" in volume] == ["registry.example/acme/tiny:1"]


async def test_a_webhook_that_cannot_be_rehearsed_with_refuses_no_edit() -> None:
    world = World()
    await world.settled()
    apply = world.store.apply

    async def no_dry_run(manifest: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        if dry_run and manifest["kind"] == "Deployment":
            raise RefusedError(400, "BadRequest", 'admission webhook "x.example.org" does not support dry run')
        return await apply(manifest, subresource=subresource, dry_run=dry_run)

    world.store.apply = no_dry_run  # type: ignore[method-assign]  # of this store alone
    world.edit(prefixCache={"budgetMiB": 256}, engine={"env": [{"name": "A"}]})
    await world.settled()
    assert followed(world) == file(world) == (2, 256)


async def test_the_policy_that_agents_start_with_is_kept_while_an_edit_is_refused() -> None:
    world = World()
    await world.settled()
    world.edit(**TOO_MUCH)
    await world.settled()
    del world.store.objects[POLICY]
    await world.settled()
    assert file(world) == (1, 512)
    world.store.objects[POLICY]["data"]["policy.json"] = "{}"
    await world.settled()
    assert file(world) == (1, 512)


async def test_workers_are_told_of_while_an_edit_cannot_be_read() -> None:
    world = World()
    world.knows(a=1.0)
    await world.settled()
    world.edit(role="Nonsense")
    await world.settled()
    assert world.condition("ConfigValid") == ("False", "Invalid")
    assert world.condition("ContractConsistent") == ("True", "Consistent")
    assert world.condition("HitRateMet") == ("Unknown", "ConfigInvalid")


async def test_a_new_pool_that_cannot_be_read_says_nothing_of_a_missing_control_plane() -> None:
    world = World(role="Nonsense")
    world.source.known = Facts(None, Reason.POOL_NOT_KNOWN, "not seen yet")
    await world.settled()
    assert world.condition("IndexFresh") == ("Unknown", "PoolNotKnown")


async def test_a_pool_that_was_never_admitted_has_nothing_in_force() -> None:
    world = World(**TOO_MUCH)
    await world.settled()
    assert "admitted" not in world.store.objects[POOL]["status"]
    assert not in_force(world.store.objects[POOL]).admitted
    assert POLICY not in world.store.objects


async def test_a_status_that_was_lost_is_written_again() -> None:
    world = World()
    await world.settled()
    del world.store.objects[POOL]["status"]
    await world.settled()
    assert followed(world) == (1, 512)


async def test_the_size_of_a_token_is_remembered_for_when_nobody_tells_it() -> None:
    world = World(model={"kvBytesPerToken": None})
    await world.settled()
    world.pod("a")
    contract = ContractFacts("c", block_size=16)
    world.source.known = Facts(
        PoolDetail(key="p/q", contract=contract, members=(WorkerFacts(name="a", block_bytes=16 * 1024 * 1024),))
    )
    await world.facts_cache.round()
    await world.settled()
    world.source.known = Facts(None)
    world.facts_cache.drop(KEY)
    world.edit(model={"kvBytesPerToken": None}, prefixCache={"budgetMiB": 4000})
    await world.settled()
    assert followed(world) == file(world) == (1, 512)
    told = {each["type"]: each["reason"] for each in world.store.objects[POOL]["status"]["conditions"]}
    assert told["BudgetAdmitted"] == "RunningShareTooSmall"


@pytest.mark.parametrize("silent", [False, True])
async def test_the_size_of_a_token_by_workers_that_go_refuses_nothing(*, silent: bool) -> None:
    """Two devices for each worker instead of one, and a budget for which that is made."""
    world = World(model={"kvBytesPerToken": None})
    await world.settled()
    contract = ContractFacts("c", block_size=16)
    world.pod("old")
    old = WorkerFacts(name="old", block_bytes=16 * 1024 * 1024)
    world.source.known = Facts(PoolDetail(key="p/q", contract=contract, members=(old,)))
    await world.facts_cache.round()
    await world.settled()
    world.edit(
        model={"kvBytesPerToken": None},
        engine={"maxModelLen": 2048, "tensorParallelSize": 2},
        prefixCache={"budgetMiB": 4000},
    )
    await world.settled()
    if silent:
        world.source.known = Facts(None)
        world.facts_cache.drop(KEY)
    for _ in range(2):
        await world.settled()
        told = {each["type"]: each["reason"] for each in world.store.objects[POOL]["status"]["conditions"]}
        assert told["BudgetAdmitted"] == "BytesPerTokenUnknown"
        assert followed(world) == file(world) == (2, 4000)
