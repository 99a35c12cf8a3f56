"""``POST /v1/route`` with ``lint``: exact tokens and the tenant's earlier prompts, and nothing kept of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.controlplane.gateway.harness import BLOCK_SIZE, MODEL, Front, Known, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, directory

ROUTE = "/v1/route"
RULES = "Answer what travellers ask about trains, and keep to what the timetable says. " * 8


def body(moment: str, *, lint: Any = True, **more: Any) -> dict[str, Any]:
    said = [{"role": "system", "content": f"Now: {moment}. {RULES}"}, {"role": "user", "content": "When does it go?"}]
    return {"model": MODEL, "messages": said} | ({} if lint is None else {"lint": lint}) | more


async def linted(gate: Front, sent: dict[str, Any], **headers: str) -> dict[str, Any]:
    status, _, told = await gate.post(ROUTE, sent, **headers)
    assert status == 200, told
    found: dict[str, Any] = json.loads(told)["lint"]
    return found


async def test_what_will_not_be_cached_is_told_in_counted_tokens() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        found = await linted(gate, body("2026-11-27 09:05:01"))
        assert (found["block_size"], found["exact"], found["compared"]) == (BLOCK_SIZE, True, False)
        warning, end = found["findings"]
        assert (warning["severity"], warning["cause"], warning["part"]) == ("warning", "time", "system")
        assert (warning["character"], warning["position"]) == (len("Now: "), 0)
        servable = (found["prompt_tokens"] - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert (end["cause"], end["position"], end["tokens"]) == (
            "last_block",
            servable,
            found["prompt_tokens"] - servable,
        )
        assert {seen.path for seen in one.requests} == {"/v1/chat/completions/render"}
        assert b"lint" not in b"".join(seen.body for seen in one.requests)
        assert len(gate.prompts.shapes) == 0


async def test_it_tells_what_the_next_request_is_then_charged_with() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        assert (await gate.settled(CHAT, body("2026-11-27 09:05:01", lint=None)))[0] == 200
        gate.report(0)
        found = await linted(gate, body("2026-11-27 10:15:44"))
        assert found["compared"]
        first = found["findings"][0]
        assert (await gate.settled(CHAT, body("2026-11-27 10:15:44", lint=None)))[0] == 200
        [charged] = [loss for lost in gate.records[-1].lost for loss in lost.prompt if loss.cause == "time"]
        told = (first["cause"], first["tokens"], first["position"], first["part"], first["role"], first["index"])
        assert told == (charged.cause, charged.tokens, charged.position, charged.part, charged.role, charged.index)
        again = await linted(gate, body("2026-11-27 10:15:44"))
        assert [one["severity"] for one in again["findings"]] == ["note", "note"], "the same as before changes nothing"


async def test_no_tenant_is_compared_with_another() -> None:
    known = Known(directory(ACME, UMBRELLA))
    async with engine() as one, front([one], known=known) as gate:
        gate.report(0)
        acme, umbrella = (f"Bearer {KEYS[tenant.name]}" for tenant in (ACME, UMBRELLA))
        status, _, _ = await gate.post(CHAT, body("2026-11-27 09:05:01", lint=None), authorization=acme)
        assert status == 200
        assert len(gate.prompts.shapes) == 1
        assert not (await linted(gate, body("2026-11-27 10:15:44"), authorization=umbrella))["compared"]
        assert (await linted(gate, body("2026-11-27 10:15:44"), authorization=acme))["compared"]


async def test_without_the_member_nothing_is_said() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        for lint in (None, False):
            status, _, told = await gate.post(ROUTE, body("noon", lint=lint))
            assert (status, "lint" in json.loads(told)) == (200, False)
        record = await gate.gateway.explain(b'{"model": "fake", "prompt": "hello", "lint": true}')
        assert record.reason


async def test_where_no_engine_counts_tokens_are_estimated() -> None:
    async with engine() as one, front([one], ready=False) as gate:
        found = await linted(gate, body("09:05:01"))
        assert (found["exact"], found["compared"]) == (False, False)
        assert [one["cause"] for one in found["findings"]] == ["time"]


@pytest.mark.parametrize(
    "sent",
    [
        {"model": MODEL, "prompt": "a", "lint": "yes"},
        {"model": MODEL, "prompt": "a", "lint": 1},
        {"model": MODEL, "input": "a", "lint": True, "endpoint": "/v1/embeddings"},
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(sent: dict[str, Any]) -> None:
    async with engine() as one, front([one]) as gate:
        status, _, told = await gate.post(ROUTE, sent)
        assert (status, json.loads(told)["error"]["param"]) == (400, "lint")
        assert gate.prompts.ledger.offences(None, time.time(), most=9) == []
