"""The benchmark of proxies: canned engines that answer in vLLM's form, and a client that hears it."""

import asyncio
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import aiohttp
import pytest

from bench import proxies, proxies_memory
from bench.proxies import Figures, rows_of
from bench.proxies_client import Caller, ProxyError, Shape, latencies, load
from bench.proxies_engine import TOKENS, engines
from bench.proxies_memory import memory_rows
from bench.proxies_sides import OURS, PEER_ROUTERS, Proxy
from tests.fakes.engine import FakeEngine

WHOLE, STREAM = Shape(2048, stream=False), Shape(2048, stream=True)


def form(value: Any) -> Any:
    """The names of all members, and of what kind values are."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    return form(value[0]) if isinstance(value, list) and value else type(value).__name__


async def told(url: str, body: bytes, **more: Any) -> list[dict[str, Any]]:
    asked = json.loads(body) | more
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/chat/completions", json=asked) as answer:
        text = await answer.text()
    if not text.startswith("data:"):
        return [json.loads(text)]
    return [json.loads(line[5:]) for line in text.splitlines() if line and "[DONE]" not in line]


@pytest.mark.parametrize("ids", [True, False])
async def test_canned_answers_have_what_a_worker_says_in_its_form(*, ids: bool) -> None:
    """Of what the gateway reads; the fake engine is held to real vLLM."""
    async with engines(1) as (url,), FakeEngine(model="bench") as engine:
        for shape in (WHOLE, STREAM):
            body = next(shape.bodies())
            more = {"stream_options": {"include_usage": True}} if shape.stream else {}
            canned, real = [await told(each, body, return_token_ids=ids, **more) for each in (url, engine.url)]
            assert len(canned) == len(real)
            for one, other in zip(canned, real, strict=True):
                for choice, expected in zip(one["choices"], other["choices"], strict=True):
                    assert choice.keys() >= expected.keys() - {"routed_experts"}
                    assert form(choice.get("token_ids")) == form(expected.get("token_ids"))
                assert form(one.get("prompt_token_ids")) == form(other.get("prompt_token_ids"))
                assert (one.get("usage") is None) == (other.get("usage") is None)


async def test_bodies_are_as_large_as_they_are_said_to_be_and_never_the_same() -> None:
    bodies = list(itertools.islice(Shape(32 * 1024, stream=True).bodies(), 64))
    assert len(set(bodies)) == 64
    assert all(32 * 1024 < len(body) < 33 * 1024 for body in bodies)


async def test_the_client_hears_whole_answers_and_streams() -> None:
    async with engines(2) as urls:
        for shape in (WHOLE, STREAM):
            bodies = list(itertools.islice(shape.bodies(), 8))
            answered, seconds = await load(urls[0], bodies, connections=4, seconds=0.2)
            assert len(answered) >= 4
            assert all(0 < each < seconds for each in answered)
            assert seconds >= 0.2
            times = await latencies(urls, bodies, pick=lambda heard: heard.whole)
            assert [len(each) for each in times] == [8, 8]
            caller = await Caller.to(urls[1])
            heard = await caller.ask(bodies[0])
            caller.close()
            assert heard.text.count(b"word ") == TOKENS


async def test_an_error_or_a_closed_connection_is_no_answer() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 No\r\ncontent-length: 2\r\n\r\nno")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    caller = await Caller.to(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(ProxyError, match="503"):
        await caller.ask(b"{}")
    with pytest.raises(ProxyError, match="closed"):
        await caller.ask(b"{}")
    server.close()


async def test_a_proxy_that_answers_otherwise_voids_the_row() -> None:
    async with engines(1) as (url,):
        await proxies.check([Proxy("same", url, 0)], url, WHOLE)
        async with FakeEngine(model="bench", natural_tokens=4) as engine:
            with pytest.raises(ProxyError, match="other answers otherwise"):
                await proxies.check([Proxy("other", engine.url, 0)], url, WHOLE)


def test_rows_have_their_bars() -> None:
    figures = {name: Figures() for name in (OURS, *(peer.name for peer in PEER_ROUTERS))}
    for number, one in enumerate(figures.values(), start=1):
        one.seconds, one.rates, one.per_cpu = [0.002 * number] * 4, [100.0], [1000.0 * number]
        one.loaded = [0.01 * number] * 4
    rows = rows_of(WHOLE, figures, [0.0015] * 4)
    bars = {one["row"]: (one["bar"], one["kept"]) for one in rows if "bar" in one}
    assert len(rows) == 5 * len(PEER_ROUTERS) + 1
    assert bars == {
        "2 KiB, whole: per second of CPU, beside sglang-router 0.3.2": ("≥ 1x", False),
        "2 KiB, whole: per second of CPU, beside vllm-router 0.1.17": ("≥ 1x", False),
        "2 KiB, whole: p99 at 16 connections, beside vllm-router 0.1.17": ("≤ 1x", True),
        "2 KiB, whole: per second of CPU, beside smg 1.13.0": ("≥ 1.3x", False),
        "2 KiB, whole: added p50, approximate rung": ("≤ 0.35", False),
    }


async def test_memory_with_open_streams_counts_those_that_end() -> None:
    @contextmanager
    def start(*, workers: Sequence[str]) -> Iterator[Proxy]:
        yield Proxy("an engine itself", workers[0], os.getpid())

    with patch.object(proxies_memory, "WATCH_SECONDS", 0.1):
        held = {one["row"]: one for one in await memory_rows("one", start, streams=8, judged=True)}
        with patch.multiple(proxies_memory, TOKENS=1, TOKEN_SECONDS=0.0):
            ended = await memory_rows("one", start, streams=8, judged=False)
    assert held["one: 8 open streams, memory"]["ours"] > 10
    assert held["one: 8 open streams, refused or ended"]["ours"] == 0
    assert held["one: 8 open streams, longest pause of one"]["kept"]
    assert {one["row"]: one["ours"] for one in ended}["one: 8 open streams, refused or ended"] == 8
