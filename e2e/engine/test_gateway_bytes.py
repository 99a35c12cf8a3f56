"""The same request, sent to real vLLM directly and through the gateway, has the same answer, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import Any

import aiohttp
import pytest

from e2e.engine.vllm import VllmOptions, VllmServer
from tests.controlplane.gateway.cases import (
    ANSWERED,
    CHAT,
    COMPLETIONS,
    REFUSED,
    REFUSED_FOR_TYPES,
    Case,
    timeless,
)
from tests.controlplane.gateway.harness import SALT, Front, direct, front

ATTEMPTS = 200
"""vLLM puts tokens that a busy server could not send in time into one event; that differs from time to time."""

PROMPTS = 16
"""Of one request; two of their answers fit into the engine at a time, so the whole takes long on any machine."""
LENGTH = 1000
RUNNING = "vllm:num_requests_running{"
GENERATED = "vllm:generation_tokens_total{"

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
WITH_PARSERS = VllmOptions(extra=("--enable-auto-tool-choice", "--tool-call-parser=hermes", "--reasoning-parser=qwen3"))


async def _compare(gate: Front, server: VllmServer, case: Case) -> None:
    path, name, body = case
    asked = {"model": server.options.model} | body
    key = server.options.api_key
    await direct(server, path, asked | {"cache_salt": SALT}, key=key)  # so that both find the same in cache
    given = []
    for _ in range(ATTEMPTS):
        expected = await direct(server, path, asked | {"cache_salt": SALT}, key=key)
        assert expected[0] == 200, (name, expected)
        given.append(_comparable(expected[1]))
        status, _, got = await gate.post(path, asked)
        assert status == 200, (name, got)
        if _comparable(got) in given:
            return
    assert (name, _comparable(got)) == (name, given[-1])


def _comparable(body: bytes) -> list[bytes]:
    """Events of several choices come in the order in which the engine has them ready: put in order by choice."""
    events = timeless(body).split(b"\n\n")
    return sorted(events, key=_choice) if b'"index":1' in body else events


def _choice(event: bytes) -> int:
    found = re.search(rb'"index":(\d+)', event)
    return int(found[1]) if found else 1_000


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_answers(vllm_server: VllmServer, path: str) -> None:
    async with front([vllm_server], model=vllm_server.options.model, key=vllm_server.options.api_key) as gate:
        for case in ANSWERED:
            if case[0] == path:
                await _compare(gate, vllm_server, case)
        assert {record.status for record in gate.records} == {200}
        assert all(record.completion_tokens for record in gate.records if record.endpoint == path)
        assert any(record.cached_tokens for record in gate.records)


async def test_refusals(vllm_server: VllmServer) -> None:
    key = vllm_server.options.api_key
    async with front([vllm_server], model=vllm_server.options.model, key=key) as gate:
        for path, name, body in (*REFUSED, *REFUSED_FOR_TYPES):
            asked = {"model": vllm_server.options.model} | body
            status, expected = await direct(vllm_server, path, asked, key=key)
            got_status, _, got = await gate.post(path, asked)
            assert status == 400, (name, expected)
            told = json.loads(expected)
            told["error"] |= {"type": "invalid_request_error", "code": str(told["error"]["code"])}  # OpenAI's form
            if name == "too-long":
                param = "messages" if path == CHAT else "prompt"
                told["error"] |= {"param": param, "code": "context_length_exceeded"}
            assert (name, got_status, json.loads(got)) == (name, status, told)
            assert SALT.encode() not in got


@pytest.mark.parametrize("vllm_server", [WITH_PARSERS], indirect=True)
async def test_answers_of_parsers(vllm_server: VllmServer) -> None:
    """Parsers keep text back: asking for ids then makes vLLM send events it would not send otherwise."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "look it up"}], "max_tokens": 12}
    plain = {"temperature": 1, "seed": 3}
    async with front([vllm_server], model=vllm_server.options.model, key=vllm_server.options.api_key) as gate:
        for stream in (False, True):
            shapes: dict[str, dict[str, Any]] = {
                "auto": {"tools": [TOOL], "tool_choice": "auto"},
                "required": {"tools": [TOOL], "tool_choice": "required", "max_tokens": 40},
                "reasoning": {},
                "reasoning-hidden": {"include_reasoning": False},
            }
            for name, options in shapes.items():
                await _compare(gate, vllm_server, (CHAT, name, chat | plain | options | {"stream": stream}))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_frees_the_worker(vllm_server: VllmServer, *, stream: bool) -> None:
    model, key = vllm_server.options.model, vllm_server.options.api_key
    prompts = [f"x{number}" for number in range(PROMPTS)]
    body = {"model": model, "prompt": prompts, "max_tokens": LENGTH, "ignore_eos": True, "stream": stream}
    generated = await _sample(vllm_server, GENERATED)
    async with front([vllm_server], model=model, key=key) as gate:
        async with aiohttp.ClientSession() as http:
            asking = asyncio.ensure_future(http.post(gate.url + COMPLETIONS, json=body))
            async with asyncio.timeout(60):
                while await _sample(vllm_server, RUNNING) < 1:  # noqa: ASYNC110 - another process changes it
                    await asyncio.sleep(0.01)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await asking).close()
        async with asyncio.timeout(60):
            while await _running_after_a_probe(vllm_server):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
        assert gate.records[0].attempts[-1].outcome == "cancelled"
    assert await _sample(vllm_server, GENERATED) - generated < 0.9 * PROMPTS * LENGTH


async def _running_after_a_probe(server: VllmServer) -> float:
    """An engine with nothing to do does not renew its gauges: give it a token to make."""
    body = {"model": server.options.model, "prompt": "y", "max_tokens": 1}
    await direct(server, COMPLETIONS, body, key=server.options.api_key)
    return await _sample(server, RUNNING)


async def _sample(server: VllmServer, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)
