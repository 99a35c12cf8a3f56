"""Tenants at a real gateway: who is let in, under which salt, what is refused and how, and what is counted."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from cachefleet_controlplane.gateway.admit.tenant_admission import INVALID_KEY
from cachefleet_controlplane.store.access_marker import ClosedReason
from cachefleet_controlplane.store.tenant_records import TenantRecord, UsageRecord
from cachefleet_controlplane.tenants.directory import Directory
from cachefleet_core.tenancy import DEFAULT_TENANT, api_key_hash, tenant_salt
from tests.controlplane.gateway.harness import FLEET_KEY, SALT, WORKER_KEY, Known, chat, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, ask, directory, record, salts
from tests.controlplane.waiting import until, value


@pytest.mark.requirement("A17")
async def test_each_tenants_requests_carry_its_own_salt_whatever_the_client_says() -> None:
    async with engine() as worker, front([worker], known=Known(directory(ACME, UMBRELLA))) as gate:
        assert (await ask(gate, ACME, cache_salt="mine"))[0] == 200
        assert salts(worker) == {tenant_salt(FLEET_KEY.salt_key, ACME.name)}
        assert (await ask(gate, UMBRELLA))[0] == 200
        assert tenant_salt(FLEET_KEY.salt_key, UMBRELLA.name, 2) in salts(worker)
        assert len(salts(worker)) == 2


@pytest.mark.requirement("A17")
async def test_one_tenants_blocks_are_of_no_use_to_another() -> None:
    text = "tell me about the weather " * 20
    async with engine() as worker, front([worker], known=Known(directory(ACME, UMBRELLA))) as gate:
        told, decided = list[int](), list[int]()
        for tenant in (ACME, ACME, UMBRELLA):
            key = f"Bearer {KEYS[tenant.name]}"
            _, _, answer = await gate.post("/v1/route", chat(text), authorization=key)
            decided.append(json.loads(answer)["predicted_tokens"])
            _, _, answer = await gate.post(CHAT, chat(text, max_tokens=1), authorization=key)
            told.append(json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"])
            gate.report(0, salt=tenant_salt(FLEET_KEY.salt_key, ACME.name))
    assert told[1] > 0
    assert told[0] == told[2] == 0
    assert decided == told


async def test_the_api_key_header_does_as_well() -> None:
    async with engine() as worker, front([worker], known=Known(directory(ACME))) as gate:
        status, _, _ = await gate.post(CHAT, chat("x"), x_api_key=KEYS[ACME.name])
        assert status == 200


async def test_without_keys_everyone_is_the_default_tenant() -> None:
    async with engine() as worker, front([worker]) as gate:
        assert (await ask(gate, None))[0] == 200
        assert (await ask(gate, ACME))[0] == 200, "a key that means nothing does no harm"
        assert salts(worker) == {SALT}


async def test_the_default_tenants_own_settings_hold_without_keys() -> None:
    own = TenantRecord(name=DEFAULT_TENANT, salt_version=4)
    async with engine() as worker, front([worker], known=Known(directory(own, keys=()))) as gate:
        assert (await ask(gate, None))[0] == 200
        assert salts(worker) == {tenant_salt(FLEET_KEY.salt_key, DEFAULT_TENANT, 4)}


@pytest.mark.parametrize(
    ("headers", "outcome"),
    [
        ({}, "missing"),
        ({"authorization": "Bearer cf-unknown"}, "wrong"),
        ({"x-api-key": "cf-unknown"}, "wrong"),
        ({"authorization": f"Bearer {KEYS[UMBRELLA.name]}"}, "ended"),
    ],
)
async def test_who_has_no_right_key_gets_401_everywhere(headers: dict[str, str], outcome: str) -> None:
    known = Known(directory(ACME, UMBRELLA, keys=[record(ACME), record(UMBRELLA, expires=1.0)]))
    async with engine() as worker, front([worker], known=known) as gate:
        for path in (CHAT, "/v1/completions", "/v1/route"):
            status, told, body = await gate.post(path, b"{", **headers)
            error = json.loads(body)["error"]
            assert (status, error["code"], error["type"]) == (401, INVALID_KEY, "authentication_error")
            assert set(error) == {"message", "type", "param", "code"}
            assert "cf-" not in error["message"]
            assert told["www-authenticate"] == "Bearer"
        async with gate.http.get(gate.url + "/v1/models", headers=headers) as answer:
            assert answer.status == 401
        assert not worker.requests
        assert value(gate.metrics, "auth_checks_total", check="gateway", outcome=outcome) == 4


async def test_the_refusal_has_the_shape_of_the_api_that_was_asked() -> None:
    async with engine() as worker, front([worker], known=Known(directory(ACME))) as gate:
        status, _, body = await gate.post("/v1/messages", chat("x"), x_api_key="cf-unknown")
        told = json.loads(body)
        assert (status, told["type"], told["error"]["type"]) == (401, "error", "authentication_error")


async def test_a_revoked_key_is_refused_as_soon_as_it_is_known() -> None:
    known = Known(directory(ACME))
    async with engine() as worker, front([worker], known=known) as gate:
        assert (await ask(gate, ACME))[0] == 200
        known.directory = directory(ACME, keys=[record(ACME, revoked=1.0)])
        assert (await ask(gate, ACME))[0] == 401
        assert (await ask(gate, None))[0] == 401


async def test_required_keys_that_could_never_be_read_are_503() -> None:
    known = Known(Directory(required=True, read=False))
    async with engine() as worker, front([worker], known=known) as gate:
        status, told, _ = await ask(gate, ACME)
        assert (status, int(told["retry-after"]) > 0) == (503, True)
        known.directory = directory(required=True)
        assert (await ask(gate, None))[0] == 401


async def test_where_the_record_of_keys_was_lost_nobody_is_served() -> None:
    for required in (False, True):
        known = Known(Directory(required=required, closed=ClosedReason.LOST))
        async with engine() as worker, front([worker], known=known) as gate:
            for tenant in (ACME, None):
                status, told, body = await ask(gate, tenant)
                assert (status, int(told["retry-after"]) > 0, body["error"]["code"]) == (503, True, "api_keys_lost")
            assert not worker.requests
            known.directory = replace(directory(ACME), closed=ClosedReason.LOST)
            assert [(await ask(gate, tenant))[0] for tenant in (ACME, None)] == [200, 401]


async def test_requests_wait_until_it_is_known_whether_there_are_keys() -> None:
    known = Known(Directory(read=False))
    known.informed.clear()
    async with engine() as worker, front([worker], known=known) as gate:
        early = asyncio.create_task(ask(gate, None))
        await until(lambda: gate.gateway.under_way == 1)
        known.directory = directory(ACME)
        known.informed.set()
        assert (await early)[0] == 401


async def test_a_disabled_tenant_is_403() -> None:
    disabled = TenantRecord(name=ACME.name, disabled=True)
    async with engine() as worker, front([worker], known=Known(directory(disabled, UMBRELLA))) as gate:
        status, _, body = await ask(gate, ACME)
        assert (status, body["error"]["code"]) == (403, "tenant_disabled")
        assert (await ask(gate, UMBRELLA))[0] == 200
        assert value(gate.metrics, "tenant_refusals_total", tenant="acme", reason="tenant_disabled") == 1


async def test_what_is_used_is_noted_with_what_the_engine_told() -> None:
    used: list[UsageRecord] = []
    async with engine() as worker, front([worker], known=Known(directory(ACME)), used=used.append) as gate:
        usage = [(await ask(gate, ACME))[2]["usage"]]
        await ask(gate, ACME, stream=True)
        assert (await ask(gate, ACME, model="nobody's"))[0] == 404
        await gate.post("/v1/route", chat("x"), authorization=f"Bearer {KEYS[ACME.name]}")
        await until(lambda: gate.gateway.under_way == 0)
    assert [(one.tenant, one.model, one.requests, one.hour % 3600) for one in used] == [("acme", "fake", 1, 0)] * 2
    for one in used:
        assert (one.prompt_tokens, one.completion_tokens) == (
            usage[0]["prompt_tokens"],
            usage[0]["completion_tokens"],
        )
        assert value(gate.metrics, "tenant_requests_total", tenant="acme") == 2
    assert value(gate.metrics, "tenant_completion_tokens_total", tenant="acme") == sum(
        u.completion_tokens for u in used
    )


async def test_a_clients_key_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with engine() as worker, front([worker], known=Known(directory(ACME))) as gate:
        for header in ("authorization", "x-api-key"):
            prefix = "Bearer " if header == "authorization" else ""
            for key in (KEYS[ACME.name], "cf-wrong-4711"):
                await gate.post(CHAT, chat("x"), **{header: prefix + key})
        sent = repr([(seen.headers, seen.body) for seen in worker.requests])
        traces = [sent, caplog.text, generate_latest(gate.metrics.registry).decode(), repr(gate.records)]
    assert f"Bearer {WORKER_KEY}" in sent
    hashed = api_key_hash(FLEET_KEY.api_key_hash_key, KEYS[ACME.name].encode())
    for trace in traces:
        assert not [secret for secret in (KEYS[ACME.name], "cf-wrong-4711", hashed) if secret in trace]
    assert tenant_salt(FLEET_KEY.salt_key, ACME.name) not in "".join(traces[1:])
