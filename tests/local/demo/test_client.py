"""The demo's client against a fake engine, which answers as a gateway would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from cachefleet_local.demo.client import AGENTS_AT_A_TIME, Target, send_all
from cachefleet_local.demo.workload import Request, Shape, workload
from tests.fakes.engine import FakeEngine

TRACE = workload(Shape(conversations=4, turns=4, system_words=20, input_words=10, step_words=5))


def total_words(request: Request) -> int:
    return sum(len(message["content"].split()) for message in request.messages)


async def test_every_request_is_answered_and_counted() -> None:
    async with FakeEngine(model="tiny", num_blocks=4096) as engine:
        ticks: list[None] = []
        answers = await send_all(Target(engine.url, "tiny"), TRACE, lambda: ticks.append(None))
    assert [answer.number for answer in answers] == list(range(len(TRACE)))
    assert [answer.failure for answer in answers] == [""] * len(TRACE)
    assert len(ticks) == len(TRACE)
    assert all(answer.prompt_tokens > total_words(request) for answer, request in zip(answers, TRACE, strict=True))
    assert all(answer.ttft_seconds > 0 for answer in answers)
    assert answers[0].cached_tokens == 0
    assert sum(answer.cached_tokens for answer in answers) > 0


async def test_failures_are_told_and_do_not_stop_the_rest() -> None:
    async with FakeEngine(model="other", num_blocks=4096) as engine:
        answers = await send_all(Target(engine.url, "tiny"), TRACE, lambda: None)
    assert all(answer.failure.startswith("status 404") for answer in answers)
    refused = await send_all(Target(engine.url, "tiny"), TRACE[:1], lambda: None)
    assert "Connect" in refused[0].failure


class Gateway:
    """Answers after a moment and remembers who was under way at the same time."""

    def __init__(self) -> None:
        self.under_way: list[str] = []
        self.most = 0
        self.together: list[tuple[str, ...]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.under_way.append(body["messages"][1]["content"])
        self.together.append(tuple(self.under_way))
        await asyncio.sleep(0.01)
        self.under_way.remove(body["messages"][1]["content"])
        headers = {"x-cachefleet-decision": "d", "x-cachefleet-worker": "w", "x-cachefleet-knowledge": "exact"}
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **headers})
        await response.prepare(request)
        for event in self.events():
            await response.write(f"data: {event}\n\n".encode())
        return response

    def events(self) -> list[str]:
        usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 64}}
        chunks: list[dict[str, object]] = [
            {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
            {"choices": [{"delta": {"content": "word"}}]},
            {"choices": [], "usage": usage},
        ]
        return [*map(json.dumps, chunks), "[DONE]"]


class Broken(Gateway):
    """Ends before the end."""

    def events(self) -> list[str]:
        return super().events()[:2]


class Failing(Gateway):
    """Reports an error in the stream."""

    def events(self) -> list[str]:
        return [super().events()[0], json.dumps({"error": {"message": "worker lost"}})]


@pytest.fixture(params=[Gateway])
async def gateway(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Gateway, str]]:
    server = request.param()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield server, site.name
    await runner.cleanup()


async def test_headers_and_usage_become_the_answer(gateway: tuple[Gateway, str]) -> None:
    (answer,) = await send_all(Target(gateway[1], "tiny"), TRACE[:1], lambda: None)
    assert (answer.decision, answer.worker, answer.knowledge) == ("d", "w", "exact")
    assert (answer.prompt_tokens, answer.cached_tokens) == (100, 64)
    assert answer.ttft_seconds >= 0.01


async def test_agents_work_at_the_same_time_but_a_conversation_waits_for_itself(gateway: tuple[Gateway, str]) -> None:
    server, url = gateway
    trace = workload(Shape(conversations=8, turns=3, backtrack=0))
    await send_all(Target(url, "tiny"), trace, lambda: None)
    assert 2 <= max(map(len, server.together)) <= AGENTS_AT_A_TIME
    assert all(len(set(names)) == len(names) for names in server.together)


@pytest.mark.parametrize(
    ("gateway", "failure"),
    [(Broken, "ValueError: the stream ended early"), (Failing, "ValueError: error in the stream")],
    indirect=["gateway"],
)
async def test_a_stream_that_breaks_is_a_failure(gateway: tuple[Gateway, str], failure: str) -> None:
    (answer,) = await send_all(Target(gateway[1], "tiny"), TRACE[:1], lambda: None)
    assert answer.failure.startswith(failure)
