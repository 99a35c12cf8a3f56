"""``x-cachefleet-trace``: what was decided, predicted and why, told to the client that asks, and to it alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.gateway.account.decision_told import MOST_BYTES, decision_told
from cachefleet_controlplane.routing.decision import Prompt, RoutingPolicy
from cachefleet_controlplane.store.decision_records import PromptLossRecord
from tests.controlplane.gateway.harness import BLOCK_SIZE, MODEL, POOL, Front, Known, engine, front
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, UMBRELLA, directory
from tests.reference.choice import decide

TOLD = "x-cachefleet-trace"
ASKS = {TOLD: "1"}
RULES = "Answer what travellers ask about trains, and keep to what the timetable says. " * 8


def body(moment: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "system", "content": f"Now: {moment}. {RULES}"}, {"role": "user", "content": "When does it go?"}]
    return {"model": MODEL, "messages": said, "max_tokens": 4} | more


def members(value: str) -> dict[str, str]:
    return {name: told for name, _, told in (one.partition("=") for one in value.split(", "))}


async def told(gate: Front, sent: dict[str, Any], **headers: str) -> dict[str, str]:
    status, answered, _ = await gate.settled(CHAT, sent, **(ASKS | headers))
    assert status == 200
    return members(answered[TOLD])


async def test_decision_prediction_and_cause_are_told() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        first = await told(gate, body("2026-11-27 09:05:01"))
        assert (first["verdict"], first["reason"], first["pool"]) == ("route", "cold", f'"{POOL}"')
        assert (first["predicted"], first["cached"], first["cause"]) == ("0", "0", "new")
        gate.report(0)
        again = await told(gate, body("2026-11-27 09:05:01"))
        servable = (int(again["prompt"]) - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert (again["reason"], again["predicted"], again["cached"]) == (
            "longest_prefix",
            str(servable),
            str(servable),
        )
        assert "cause" not in again
        gate.report(0)
        changed = await told(gate, body("2026-11-27 10:15:44"))
        [charged] = [loss for lost in gate.records[-1].lost for loss in lost.prompt if loss.cause == "time"]
        assert (changed["cause"], changed["part"], changed["index"]) == ("time", "system", "0")
        assert (int(changed["lost"]), int(changed["position"])) == (charged.tokens, charged.position)


async def test_a_stream_tells_what_is_known_before_its_first_byte() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        await told(gate, body("2026-11-27 09:05:01"))
        gate.report(0)
        changed = await told(gate, body("2026-11-27 10:15:44", stream=True))
        assert (changed["cause"], "cached" in changed) == ("time", False)
        assert int(changed["predicted"]) < int(changed["prompt"])


async def test_a_refusal_tells_its_reason() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        status, answered, _ = await gate.settled(CHAT, body("noon"), prefer="if-available", **ASKS)
        assert (status, members(answered[TOLD])["predicted"]) == (412, "0")


async def test_it_is_told_to_who_asks_alone_and_no_worker_sees_that() -> None:
    async with engine() as one, front([one]) as gate:
        gate.report(0)
        for headers in ({}, {TOLD: "0"}):
            status, answered, _ = await gate.settled(CHAT, body("noon"), **headers)
            assert (status, TOLD in answered) == (200, False)
        await told(gate, body("noon"))
        assert not [seen for seen in one.requests if TOLD in {name.lower() for name in seen.headers}]


async def test_another_tenants_prompts_change_nothing_of_it() -> None:
    async with engine() as one, front([one], known=Known(directory(ACME, UMBRELLA))) as gate:
        gate.report(0)
        acme, umbrella = (f"Bearer {KEYS[tenant.name]}" for tenant in (ACME, UMBRELLA))
        alone = await told(gate, body("2026-11-27 10:15:44"), authorization=umbrella)
    async with engine() as one, front([one], known=Known(directory(ACME, UMBRELLA))) as gate:
        gate.report(0)
        await told(gate, body("2026-11-27 09:05:01"), authorization=acme)
        gate.report(0)
        assert await told(gate, body("2026-11-27 10:15:44"), authorization=umbrella) == alone


@pytest.mark.parametrize("value", ["2", "yes", "", "1, 1"])
async def test_another_value_is_refused_by_name(value: str) -> None:
    async with engine() as one, front([one]) as gate:
        status, _, answer = await gate.post(CHAT, body("noon"), **{TOLD: value})
        assert (status, TOLD.encode() in answer) == (400, True)


def test_its_size_is_bounded() -> None:
    decision = replace(decide(Prompt(tokens=9), [], RoutingPolicy.CACHE_AWARE, 1.0), pool=f"{'n' * 63}/{'p' * 253}")
    cause = PromptLossRecord("reasoning_dropped", 10**9, 10**9, "tool_calls", "assistant", 10**6)
    name, value = decision_told(decision, cached=10**9, cause=cause)
    assert name == TOLD.encode()
    assert len(value) <= MOST_BYTES
    assert b"lost=1000000000" in value
