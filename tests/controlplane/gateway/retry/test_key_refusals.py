"""Workers that do not take the gateway's own key: no client is told that its key is bad."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from aiohttp import web
from cachefleet_native import pure

from tests.controlplane.gateway.harness import WORKER_KEY, Front, engine, front
from tests.controlplane.gateway.retry.test_failover import Scripted, serving
from tests.controlplane.waiting import value


class Locked(Scripted):
    """Answers as vLLM does to a wrong key, until it takes it."""

    def __init__(self, status: int = 401) -> None:
        super().__init__()
        self.status = status

    async def answer(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": "Unauthorized"}, status=self.status)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusing(gate: Front) -> list[str]:
    return [worker.name for worker in gate.fleet.view().workers if worker.key_refused]


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_worker_s_refusal_of_our_key_is_a_502_with_the_reason(path: str, *, status: int, stream: bool) -> None:
    async with serving(Locked(status)) as locked, front([locked]) as gate:
        body = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": stream}
        for _ in range(2):  # also where nobody else is left
            got, _, answer = await gate.post(path, body)
            error = json.loads(answer)["error"]
            assert got == 502
            assert "gateway's own key" in error["message"]
            assert path != "/v1/chat/completions" or error["code"] == "worker_key_refused"
        assert refusing(gate) == ["demo-0"]


@pytest.mark.parametrize("stream", [False, True])
async def test_another_worker_answers_and_the_one_that_refuses_is_left_out(*, stream: bool) -> None:
    async with serving(Locked()) as locked, engine() as good, front([locked, good]) as gate:
        for number in range(6):
            status, headers, _ = await gate.chat(f"request {number}", stream=stream)
            assert (status, headers["x-cachefleet-worker"]) == (200, "demo-1")
        assert locked.asked == 1
        assert refusing(gate) == ["demo-0"]
        assert not any(worker.backing_off for worker in gate.fleet.view().workers)
        assert value(gate.metrics, "attempt_retries_total", reason="key_refused") == 1


async def test_it_is_asked_again_by_one_request_at_a_time_and_gets_requests_once_it_takes_the_key() -> None:
    clock = Clock()
    async with engine(api_key="another") as locked, engine() as good, front([locked, good], clock=clock) as gate:
        names = [(await gate.settled_chat(f"request {number}"))[1]["x-cachefleet-worker"] for number in range(4)]
        assert set(names) == {"demo-1"}
        clock.now += pure.KEY_RETRY_SECONDS
        await gate.settled_chat("is it better")
        assert [len(record.attempts) for record in gate.records].count(2) == 2
        assert (await gate.settled_chat("no"))[1]["x-cachefleet-worker"] == "demo-1"
        locked.options = replace(locked.options, api_key=WORKER_KEY)
        clock.now += pure.KEY_RETRY_SECONDS
        assert (await gate.settled_chat("now it is"))[1]["x-cachefleet-worker"] == "demo-0"
        assert refusing(gate) == []


async def test_a_new_epoch_of_its_engine_is_a_new_try() -> None:
    async with engine() as first, engine() as good, front([first, good]) as gate:
        gate.report(0)
        gate.fleet.key_refused("default/demo/demo-0")
        assert refusing(gate) == ["demo-0"]
        gate.report(0, said={"epoch": "later"})
        assert refusing(gate) == []
