"""Streams that wait for their first token: comments meanwhile, where pool or header says so, and what follows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from cachefleet_controlplane.pools.source import PoolView
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, events, front, pool
from tests.controlplane.waiting import until, value
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")

CHATS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
WORDS = "one two three four five six seven eight nine ten"
SAID: list[Any] = [{"role": "user", "content": WORDS}]
BODIES: dict[str, dict[str, Any]] = {
    CHATS: {"messages": SAID, "max_tokens": 4},
    "/v1/completions": {"prompt": WORDS, "max_tokens": 4},
    RESPONSES: {"input": WORDS, "max_output_tokens": 4},
    MESSAGES: {"messages": SAID, "max_tokens": 4},
}
PINGS = {MESSAGES: b'event: ping\ndata: {"type": "ping"}\n\n'}
COMMENT = b": ping\n\n"
HEADER = {"x-cachefleet-keep-alive": "10"}
ZERO = "{coldStartSeconds: 45, keepAliveSeconds: 10}"


@asynccontextmanager
async def slow(count: int = 1, admission: str = "{}") -> AsyncIterator[tuple[list[FakeEngine], Front]]:
    """Workers that compute two tokens of a prompt a second."""
    workers = [engine(prefill_tokens_per_second=2.0) for _ in range(count)]
    async with workers[0], workers[-1], front(workers, admission=admission) as gate:
        yield workers, gate


@asynccontextmanager
async def at_zero() -> AsyncIterator[Front]:
    """A gateway whose pool has no worker; a request is held for 45 s, with a comment each 10 s."""
    async with engine() as worker, front([worker], admission=ZERO) as gate:
        gate.fleet.update_pools([PoolView(pool(admission=ZERO), ())])
        yield gate


def comments(data: bytes, path: str) -> tuple[int, bytes]:
    """How many comments a stream begins with, and what follows them."""
    ping, number = PINGS.get(path, COMMENT), 0
    while data.startswith(ping):
        data, number = data.removeprefix(ping), number + 1
    return number, data


@pytest.mark.parametrize("path", BODIES)
async def test_a_long_prompt_is_waited_for_with_comments_and_its_answer_is_as_ever(path: str) -> None:
    async with slow() as (workers, gate):
        body = BODIES[path] | {"model": MODEL, "stream": True}
        status, headers, data = await gate.settled(path, body, **HEADER)
        number, rest = comments(data, path)
        assert (status, number >= 2) == (200, True)
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert {"x-request-id", "x-cachefleet-decision"} <= headers.keys()
        assert COMMENT not in rest
        assert b"event: ping" not in rest
        assert rest.startswith((b"data: ", b"event: "))
        (record,) = gate.records
        assert record.ttft_seconds is not None
        assert record.ttft_seconds > 20, "a comment is no token"
        assert (record.status, len(record.attempts)) == (200, 1)
        assert [asked.path for asked in workers[0].requests].count(path) == 1


async def test_official_clients_take_comments_for_nothing() -> None:
    async with slow() as (_, gate):
        both = clients(gate.url, model=MODEL)
        async with both.openai as client:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=SAID,
                max_tokens=4,
                stream=True,
                extra_headers=HEADER,
            )
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
            made = await client.responses.create(
                model=MODEL, input=WORDS + "!", max_output_tokens=4, stream=True, extra_headers=HEADER
            )
            assert [event.type async for event in made][-1] in {"response.completed", "response.incomplete"}
        async with (
            both.anthropic as anthropic,
            anthropic.messages.stream(
                model=MODEL, max_tokens=4, messages=[{"role": "user", "content": WORDS + "?"}], extra_headers=HEADER
            ) as stream_of_messages,
        ):
            message = await stream_of_messages.get_final_message()
        assert message.usage.output_tokens == 4


async def test_a_worker_that_dies_before_the_first_token_is_replaced_after_comments_too() -> None:
    async with slow(2) as (workers, gate):
        asking = asyncio.create_task(gate.settled(CHATS, chat(WORDS, stream=True), **HEADER))
        await until(lambda: any(worker.worker.scheduler.running for worker in workers))
        await asyncio.sleep(15)
        (busy,) = [worker for worker in workers if worker.worker.scheduler.running]
        await busy.crash()
        status, _, data = await asking
        number, rest = comments(data, CHATS)
        assert (status, number >= 2, events(rest)[-1]) == (200, True, b"[DONE]")
        assert [attempt.outcome for attempt in gate.records[-1].attempts][-1] == "finished"
        assert len(gate.records[-1].attempts) == 2


@pytest.mark.parametrize("path", BODIES)
async def test_what_fails_after_a_comment_is_an_event_of_the_api(path: str) -> None:
    async with at_zero() as gate:
        status, _, data = await gate.post(path, BODIES[path] | {"model": MODEL, "stream": True})
        number, rest = comments(data, path)
        assert (status, number) == (200, 4)
        told = json.loads(rest.split(b"data: ", 1)[1].split(b"\n\n")[0])
        if path == RESPONSES:
            assert (told["type"], told["code"], told["sequence_number"]) == ("error", "503", 0)
        elif path == MESSAGES:
            assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
        else:
            assert told["error"]["code"] == "503"
            assert rest.endswith(b"data: [DONE]\n\n")


async def test_the_metrics_have_the_status_that_it_would_have_had() -> None:
    async with at_zero() as gate:
        await gate.chat(WORDS, stream=True)
        counted = {"model": MODEL, "endpoint": CHATS}
        await until(lambda: value(gate.metrics, "requests_total", status_class="5xx", **counted) == 1)
        assert value(gate.metrics, "requests_total", status_class="2xx", **counted) == 0


async def test_a_client_raises_the_error_of_an_event() -> None:
    async with at_zero() as gate, clients(gate.url, model=MODEL).openai as client:
        stream = await client.chat.completions.create(model=MODEL, messages=SAID, stream=True)
        with pytest.raises(openai.APIError, match="No worker of model"):
            [chunk async for chunk in stream]


async def test_a_workers_own_refusal_after_comments_is_an_event_with_its_words() -> None:
    async with at_zero() as gate:
        asking = asyncio.create_task(gate.chat(WORDS, stream=True, max_tokens=-1))
        await asyncio.sleep(25)
        gate.fleet.update_pools([PoolView(pool(admission=ZERO), gate.endpoints())])
        status, _, data = await asking
        number, rest = comments(data, CHATS)
        error = json.loads(events(rest)[0])["error"]
        assert (status, number, error["type"], error["code"]) == (200, 2, "invalid_request_error", "400")
        assert "max_tokens" in error["message"]


@pytest.mark.parametrize("more", [{}, {"stream": True}])
async def test_by_default_and_of_whole_answers_nothing_is_sent_before_the_answer(more: dict[str, Any]) -> None:
    async with slow() as (_, gate):
        given = {} if more else HEADER
        _, headers, data = await gate.post(CHATS, chat(WORDS) | more, **given)
        assert COMMENT not in data
        assert headers["x-cachefleet-worker"]


async def test_a_header_goes_before_the_pools_setting() -> None:
    async with slow(admission="{keepAliveSeconds: 5}") as (_, gate):
        _, _, data = await gate.post(CHATS, chat(WORDS, stream=True), x_cachefleet_keep_alive="0")
        assert COMMENT not in data
        _, _, data = await gate.post(CHATS, chat(WORDS[::-1], stream=True))
        assert comments(data, CHATS)[0] >= 4


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("given", ["-1", "301", "1.5", "x", "", "99999"])
async def test_a_header_out_of_its_range_is_400_with_the_range(given: str, *, stream: bool) -> None:
    async with slow() as (workers, gate):
        status, _, data = await gate.post(CHATS, chat(WORDS, stream=stream), x_cachefleet_keep_alive=given)
        error = json.loads(data)["error"]
        assert (status, error["param"]) == (400, "x-cachefleet-keep-alive")
        assert "from 0 to 300" in error["message"]
        assert not workers[0].requests


async def test_a_client_that_leaves_during_comments_leaves_nothing_behind() -> None:
    async with slow() as (workers, gate):
        async with gate.http.post(gate.url + CHATS, json=chat(WORDS, stream=True), headers=HEADER) as answer:
            assert await answer.content.readexactly(len(COMMENT)) == COMMENT
        await until(lambda: not workers[0].worker.scheduler.running)


async def test_a_message_on_a_websocket_gets_no_comments() -> None:
    async with (
        slow(admission="{keepAliveSeconds: 5}") as (_, gate),
        gate.http.ws_connect(gate.url + RESPONSES) as socket,
    ):
        await socket.send_json({"type": "response.create", "model": MODEL, "input": WORDS, "store": False})
        assert (await socket.receive_json())["type"] == "response.created"
