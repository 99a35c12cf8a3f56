"""Held requests on real vLLM: the keys of the prompt first, then the same answer as to a request that was not held."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.worker_answer import AttemptResult
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_core.engine.held_requests import HOLD_HEADER, LATE_MEMBERS, Hold
from cachefleet_core.prompt_keys import decode
from e2e.engine.plugin_client import CONTRACT, Answer, ask_keys, call, features, fleet, keys_of
from e2e.engine.prompt_bodies import (
    BODIES,
    CHAT,
    COMMON,
    COMPLETION,
    MESSAGES,
    PARTS,
    RESPONSES,
    SYSTEM,
    TEXT,
    TOOLED,
    unvaried,
)
from e2e.engine.vllm import VllmServer

pytestmark = pytest.mark.parametrize("vllm_server", [TOOLED], indirect=True)


def asked(server: VllmServer, api: str, body: dict[str, Any]) -> Answer:
    return call(server, "POST", f"/v1/{api}", body, headers=server.headers)


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    async with Completions() as completions, Upstream(completions, connect_seconds=60, idle_seconds=120) as made:
        yield made


async def hold(
    client: Upstream, server: VllmServer, api: str, body: dict[str, Any], *, seconds: float = 120
) -> AttemptResult:
    sent = json.dumps(body).encode()
    asked = Hold(length=len(sent), contract=CONTRACT, block_size=16, model="tiny")
    headers = [(HOLD_HEADER, asked.header()), ("content-type", "application/json"), *server.headers.items()]
    return await client.hold(server.url, f"/v1/{api}", sent, headers=headers, seconds=seconds)


async def text(opened: AttemptResult) -> bytes:
    if opened.answer is not None:
        return opened.answer.body
    assert opened.stream is not None
    events = list(opened.stream.first)
    while opened.stream.outcome is None:
        events += await opened.stream.more()
    return b"".join(events)


def test_it_is_announced(vllm_server: VllmServer) -> None:
    assert features(vllm_server)["held"][0] == LATE_MEMBERS


LATE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"cache_hit_threshold": 0}, {"cache_hit_threshold": 1}, "cache_threshold"),
    ({}, {"cache_hit_threshold": 1}, "cache_threshold"),
    ({"cache_hit_threshold": 1}, {"cache_hit_threshold": 0}, "length"),
    ({"cache_hit_threshold": 1}, {"cache_hit_threshold": None}, "length"),
    ({"cache_hit_threshold": 1}, {"kv_transfer_params": {"do_remote_decode": True}}, "length"),
    ({"cache_hit_threshold": 1}, {}, "cache_threshold"),
]
"""Members of the body, those that come late, and how it ends: who fills a cache for others is not gated."""
PROMPTS: list[tuple[str, dict[str, Any]]] = [(CHAT, {"messages": [SYSTEM, PARTS]}), (COMPLETION, {"prompt": TEXT})]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("api", "prompt"), PROMPTS)
@pytest.mark.parametrize(("members", "late", "finish"), LATE)
async def test_late_members_are_as_those_of_the_body(
    vllm_server: VllmServer,
    *,
    api: str,
    prompt: dict[str, Any],
    members: dict[str, Any],
    late: dict[str, Any],
    finish: str,
    stream: bool,
) -> None:
    async with upstream() as client:
        opened = await hold(client, vllm_server, api, COMMON | prompt | members | {"stream": stream})
        assert opened.held is not None, opened
        answer = await text(await client.go(opened.held, url=vllm_server.url, members=json.dumps(late).encode()))
    assert re.findall(rb'"finish_reason": ?"(\w+)"', answer) == [finish.encode()]


async def test_late_members_that_are_wrong_are_a_400(vllm_server: VllmServer) -> None:
    async with upstream() as client:
        opened = await hold(client, vllm_server, CHAT, COMMON | {"messages": [SYSTEM]})
        assert opened.held is not None, opened
        answered = await client.go(opened.held, url=vllm_server.url, members=b'{"cache_hit_threshold":2}')
    assert answered.answer is not None
    assert (answered.answer.status, json.loads(answered.answer.body)["error"]["code"]) == (400, "bad_go")
    stats = await asyncio.to_thread(fleet, vllm_server, "/stats")
    assert stats["faults"] == {}
    assert features(vllm_server)["held"][0] == LATE_MEMBERS


@pytest.mark.parametrize(("api", "body"), BODIES)
async def test_a_held_request_is_answered_as_any_other(vllm_server: VllmServer, api: str, body: dict[str, Any]) -> None:
    expected = await asyncio.to_thread(asked, vllm_server, api, body)
    async with upstream() as client:
        opened = await hold(client, vllm_server, api, body)
        assert opened.held is not None, opened
        (prompt,) = decode(opened.keys)
        named = f"&api={api}" if api in {RESPONSES, MESSAGES} else ""
        answer = await asyncio.to_thread(ask_keys, vllm_server, body, f"&block_size=16{named}")
        (keyed,) = decode(answer.content)
        assert (prompt.tokens, prompt.keys, prompt.boundaries) == (keyed.tokens, keyed.keys, keyed.boundaries)
        begun = await client.go(opened.held, url=vllm_server.url)
        assert unvaried(await text(begun)) == unvaried(expected.content)


async def test_whoever_goes_away_had_nothing_computed(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM, {"role": "user", "content": "never to be computed"}], "max_tokens": 200}
    async with upstream() as client:
        before = await asyncio.to_thread(fleet, vllm_server, "/stats")
        opened = await hold(client, vllm_server, CHAT, body)
        assert opened.held is not None
        stats = await asyncio.to_thread(fleet, vllm_server, "/stats")
        assert [rank["running"] + rank["waiting"] for rank in stats["ranks"].values()] == [0]
        opened.held.drop()
    await asyncio.to_thread(asked, vllm_server, CHAT, body | {"max_tokens": 1})  # a longer one would still run
    after = await asyncio.to_thread(fleet, vllm_server, "/stats")
    assert after["ranks"]["0"]["sequence"] >= before["ranks"]["0"]["sequence"]
    assert after["ranks"]["0"]["running"] == 0
    assert after["faults"] == before["faults"]
    assert features(vllm_server)["held"][0] == LATE_MEMBERS


async def test_whoever_gives_up_before_the_keys_leaves_it_on(vllm_server: VllmServer) -> None:
    body = COMMON | {"messages": [SYSTEM] * 500}
    async with upstream() as client:
        for milliseconds in range(2, 30, 2):
            given_up = await hold(client, vllm_server, CHAT, body, seconds=milliseconds / 1000)
            if given_up.held is not None:
                given_up.held.drop()
        opened = await hold(client, vllm_server, CHAT, COMMON | {"messages": [SYSTEM]})
        assert opened.held is not None
        opened.held.drop()
    assert features(vllm_server)["held"][0] == LATE_MEMBERS


@pytest.mark.parametrize(
    "body",
    [COMMON | {"messages": [SYSTEM], "max_tokens": -1}, COMMON | {"model": "other", "messages": [SYSTEM]}, COMMON],
)
async def test_what_vllm_refuses_is_refused_as_ever(vllm_server: VllmServer, body: dict[str, Any]) -> None:
    expected = await asyncio.to_thread(asked, vllm_server, CHAT, body)
    async with upstream() as client:
        opened = await hold(client, vllm_server, CHAT, body)
        if opened.held is not None:  # vLLM looks at some members after it has rendered
            opened = await client.go(opened.held, url=vllm_server.url)
    assert opened.answer is not None
    assert (opened.answer.status, json.loads(opened.answer.body)) == (expected.status, json.loads(expected.content))


@pytest.mark.parametrize(("api", "body"), BODIES[-2:], ids=[RESPONSES, MESSAGES])
def test_other_apis_have_keys_and_boundaries_of_their_own_ids(
    vllm_server: VllmServer, api: str, body: dict[str, Any]
) -> None:
    found = keys_of(vllm_server, body, f"&api={api}")
    rendered = call(vllm_server, "POST", f"/v1/{api}/render", body)
    assert found.ids == rendered.json["token_ids"]


def test_a_gateway_that_asks_to_keep_the_prompt_gets_its_keys_alone(vllm_server: VllmServer) -> None:
    """As those of the release before do; it then sends the whole, which names nothing."""
    body = COMMON | {"messages": [SYSTEM, PARTS]}
    answer = ask_keys(vllm_server, body, "&keep=1")
    assert (answer.status, answer.content) == (200, ask_keys(vllm_server, body).content)
    assert not any(name.lower().startswith("x-cachefleet-") for name in answer.headers)


def test_ids_that_are_none_turn_nothing_off(vllm_server: VllmServer) -> None:
    assert ask_keys(vllm_server, {"prompt": [1 << 40] * 40}).status == 400
    assert features(vllm_server)["prompts"] == ("on", "")
