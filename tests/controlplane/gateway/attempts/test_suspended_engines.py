"""Requests where the engines of some or all workers answer and serve nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.controlplane.gateway.harness import engine, front
from tests.controlplane.waiting import value

pytestmark = pytest.mark.usefixtures("hurried")

ASKS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"prompt": [1, 2, 3]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
]


async def test_a_worker_asleep_gets_nothing_until_it_wakes() -> None:
    async with engine() as one, engine() as other, front([one, other]) as gate:
        gate.report(0, suspended="asleep")
        gate.report(1)
        asked = {(await gate.chat(f"number {number}"))[1]["x-cachefleet-worker"] for number in range(6)}
        assert asked == {"demo-1"}
        gate.report(0)
        asked = {(await gate.chat(f"number {number}"))[1]["x-cachefleet-worker"] for number in range(6, 12)}
        assert asked == {"demo-0", "demo-1"}


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_where_none_serves_clients_are_told_so(path: str, body: dict[str, Any]) -> None:
    async with engine() as one, engine() as other, front([one, other]) as gate:
        gate.report(0, suspended="asleep")
        gate.report(1, suspended="updating_weights")
        status, headers, answer = await gate.post(path, {"model": "fake", "stream": True} | body)
        error = json.loads(answer)["error"]
        assert (status, headers["retry-after"]) == (503, "10")
        assert "serves now (1 asleep, 1 updating weights)" in error["message"]
        assert error.get("code", "workers_suspended") == "workers_suspended"
        assert value(gate.metrics, "admission_refusals_total", reason="no_ready_worker") == 1
