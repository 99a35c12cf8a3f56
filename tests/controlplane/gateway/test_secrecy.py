"""What passes through the gateway leaves no trace of its content: not in logs, metrics, records or answers' headers."""

from __future__ import annotations

import logging
import time

import pytest
from prometheus_client import generate_latest

from cachefleet_core.tenancy import DEFAULT_TENANT, tenant_salt
from tests.controlplane.gateway.harness import FLEET_KEY, MODEL, WORKER_KEY, engine, front

MARK = "zanzibar-4711"
LONG = "what a prompt's shape is made of " * 30
TOOL = {"type": "function", "function": {"name": MARK, "description": MARK, "parameters": {}}}


async def test_nothing_logged_counted_or_recorded_holds_a_prompt_a_salt_or_a_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with engine() as first, engine() as second, front([first, second]) as gate:
        gate.report(0)
        statuses = [
            (await gate.chat(MARK))[0],
            (await gate.chat(MARK, stream=True))[0],
            (await gate.chat(f"{MARK} {LONG}"))[0],
            (await gate.chat(f"{MARK}x {LONG}", tools=[TOOL]))[0],
            (await gate.chat(MARK, max_tokens="many " + MARK))[0],
            (await gate.post("/v1/chat/completions", {"model": MARK, "messages": [{"content": MARK}]}))[0],
            (await gate.http.post(gate.url + "/v1/chat/completions", data=f'{{"model": "{MARK}'.encode())).status,
        ]
        sent = {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{MARK}y {LONG}"}],
            "tools": [TOOL],
            "max_tokens": 4,
        }
        linted = await gate.post("/v1/route", sent | {"lint": True})
        told = await gate.post("/v1/chat/completions", sent, **{"x-cachefleet-trace": "1"})
        assert b'"findings"' in linted[2]
        assert "cause=" in told[1]["x-cachefleet-trace"]
        first.fail_next(500, 2)
        second.fail_next(500, 2)
        statuses.append((await gate.chat(MARK))[0])
        seen = b"".join(request.body for worker in (first, second) for request in worker.requests)
        kept = [gate.history.steps("", time.time()), gate.prompts.ledger.offences(None, time.time(), most=100)]
        traces = [caplog.text, generate_latest(gate.metrics.registry).decode(), repr(gate.records), repr(kept)]
        traces += [repr(linted), repr(told[1])]
        assert any(one.prompt for record in gate.records for one in record.lost)
        assert len(gate.prompts.shapes) >= 2
        assert MARK not in repr([gate.prompts.shapes, vars(gate.prompts.shapes), dir(gate.prompts.shapes.read)])
    salt = tenant_salt(FLEET_KEY.salt_key, DEFAULT_TENANT)
    assert MARK.encode() in seen
    assert salt.encode() in seen
    assert statuses[:4] == [200] * 4
    assert all(400 <= status < 600 for status in statuses[4:])
    for trace in traces:
        assert not [secret for secret in (MARK, salt, WORKER_KEY, FLEET_KEY.format()) if secret in trace]
