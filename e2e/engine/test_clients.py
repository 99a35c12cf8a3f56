"""The official clients, unchanged, through the gateway, before real vLLM; and answers compared byte for byte."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from cachefleet_controlplane.gateway.admit.keep_alive import ANTHROPIC_PING, COMMENT
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.spec import read_pool
from e2e.engine.versions import import_path
from e2e.engine.vllm import VllmOptions, VllmServer
from tests.controlplane.gateway.apis.client_scenarios import GENERATING, POOLING, names
from tests.controlplane.gateway.apis.client_setup import USER, Clients, Scenario, clients
from tests.controlplane.gateway.apis.test_output_schemas import ENDLESS, TREE
from tests.controlplane.gateway.cases import CHAT, OTHERS, POOLED, Case, timeless
from tests.controlplane.gateway.harness import SALT, Front, direct, front, pool

ATTEMPTS: Final = 200
"""vLLM puts tokens that a busy server could not send in time into one event; that differs from time to time."""
SILENCE_SECONDS: Final = 120.0
"""vLLM loads its grammars' library with the first request that has one, and says nothing meanwhile."""
WITH_TOOLS: Final = VllmOptions(
    extra=(
        *("--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        # A random model under a grammar that allows blanks anywhere says nothing else.
        '--structured-outputs-config={"backend":"xgrammar","disable_any_whitespace":true}',
    ),
    environment=(("VLLM_SERVER_DEV_MODE", "1"),),  # opens /pause
)
BENCH_REQUESTS: Final = 6
SCHEMAS_WITHOUT_END: Final = [
    ENDLESS[name] for name in ("itself", "two of each other", "the only choice", "all of", "a member")
]
EMBEDDING: Final = VllmOptions(extra=("--runner=pooling", "--convert=embed"))


@pytest.fixture
async def gate(vllm_server: VllmServer) -> AsyncIterator[Front]:
    options = vllm_server.options
    async with front([vllm_server], model=options.model, key=options.api_key, idle_seconds=SILENCE_SECONDS) as made:
        yield made


@pytest.fixture
async def ours(gate: Front, vllm_server: VllmServer) -> AsyncIterator[Clients]:
    made = clients(gate.url, model=vllm_server.options.model)
    async with made.openai, made.anthropic:
        yield made


@pytest.mark.parametrize("vllm_server", [WITH_TOOLS], indirect=True)
@pytest.mark.parametrize("scenario", GENERATING, ids=names(GENERATING))
async def test_client(ours: Clients, scenario: Scenario) -> None:
    await scenario(ours)


@pytest.mark.parametrize("vllm_server", [WITH_TOOLS], indirect=True)
async def test_a_schema_that_vllm_fails_on_is_refused_and_a_tree_is_answered(
    gate: Front, vllm_server: VllmServer
) -> None:
    for schema in SCHEMAS_WITHOUT_END:
        asked = _with_schema(schema) | {"model": vllm_server.options.model}
        status, _ = await direct(vllm_server, CHAT, asked, key=vllm_server.options.api_key)
        assert status == 500, schema  # else the gateway needs to refuse it no more
        status, _, refused = await gate.post(CHAT, asked)
        assert (status, json.loads(refused)["error"]["param"]) == (400, "response_format.json_schema.schema")
    tool = {"type": "function", "function": {"name": "look", "parameters": ENDLESS["itself"], "strict": True}}
    asked = _asked(tools=[tool], tool_choice="required") | {"model": vllm_server.options.model}
    status, _ = await direct(vllm_server, CHAT, asked, key=vllm_server.options.api_key)
    assert (status, (await gate.post(CHAT, asked))[0]) == (500, 400)
    status, _, answer = await gate.post(CHAT, _with_schema(TREE) | {"model": vllm_server.options.model})
    assert status == 200, answer
    assert set(json.loads(json.loads(answer)["choices"][0]["message"]["content"])) == {"value", "children"}


@pytest.mark.parametrize("vllm_server", [WITH_TOOLS], indirect=True)
async def test_clients_ask_by_aliases(gate: Front, ours: Clients) -> None:
    _serve_as(gate, ours.model, "gpt-4o-mini", "claude-*")
    said: Any = {"messages": USER, "max_tokens": 3}
    done = await ours.openai.chat.completions.create(model="gpt-4o-mini", **said)
    chunks = [one async for one in await ours.openai.chat.completions.create(model="claude-x", stream=True, **said)]
    message = await ours.anthropic.messages.create(model="claude-haiku-4-5-20251001", **said)
    assert (done.model, {one.model for one in chunks}) == ("gpt-4o-mini", {"claude-x"})
    assert message.model == "claude-haiku-4-5-20251001"
    assert {one.id async for one in ours.openai.models.list()} == {ours.model, "gpt-4o-mini"}
    assert {record.model.rpartition("/")[2] for record in gate.records} == {ours.model}


@pytest.mark.parametrize("vllm_server", [WITH_TOOLS], indirect=True)
@pytest.mark.parametrize(("path", "ping"), [(CHAT, COMMENT), ("/v1/messages", ANTHROPIC_PING)])
async def test_a_stream_is_kept_alive_while_the_engine_makes_nothing(
    gate: Front, vllm_server: VllmServer, path: str, ping: bytes
) -> None:
    body = {"model": vllm_server.options.model, "messages": USER, "max_tokens": 3, "stream": True}
    headers = {"x-cachefleet-keep-alive": "1"}
    await _tell(vllm_server, "pause?mode=keep")
    try:
        async with gate.http.post(gate.url + path, json=body, headers=headers) as answer:
            waited = await answer.content.readexactly(2 * len(ping))
            await _tell(vllm_server, "resume")
            rest = await answer.content.read()
    finally:
        await _tell(vllm_server, "resume")
    assert (answer.status, waited) == (200, 2 * ping)
    while rest.startswith(ping):
        rest = rest.removeprefix(ping)
    assert rest.startswith((b"data: ", b"event: message_start"))
    assert rest.rstrip().endswith((b"[DONE]", b'{"type":"message_stop"}')), rest[-200:]


@pytest.mark.slow
@pytest.mark.parametrize("vllm_server", [WITH_TOOLS], indirect=True)
async def test_vllm_s_own_load_generator_measures_the_gateway(
    gate: Front, vllm_server: VllmServer, tmp_path: Path
) -> None:
    asked = {"base-url": gate.url, "backend": "openai-chat", "endpoint": CHAT, "model": vllm_server.options.model}
    asked |= {"tokenizer": str(vllm_server.folder), "dataset-name": "random", "random-input-len": "32"}
    asked |= {"random-output-len": "8", "num-prompts": str(BENCH_REQUESTS), "result-dir": str(tmp_path)}
    options = [f"--{name}={value}" for name, value in (asked | {"result-filename": "told.json"}).items()]
    running = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve", "--save-result", "--ignore-eos"),
        *options,
        env=os.environ | {"VLLM_PLUGINS": ""} | import_path("", stub=tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await running.communicate()
    assert running.returncode == 0, said.decode(errors="replace")[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["completed"], told["failed"]) == (BENCH_REQUESTS, 0)
    assert told["total_output_tokens"] == 8 * BENCH_REQUESTS
    assert len(gate.records) >= BENCH_REQUESTS


def _serve_as(gate: Front, model: str, *aliases: str) -> None:
    """Give the model of the gateway's pool further names."""
    declared = pool(model=model).model_dump(mode="json", by_alias=True, exclude_none=True)
    declared["spec"]["model"]["aliases"] = list(aliases)
    gate.fleet.update_pools([PoolView(read_pool(declared), gate.endpoints())])


async def _tell(server: VllmServer, what: str) -> None:
    async with aiohttp.ClientSession() as http, http.post(f"{server.url}/{what}", headers=server.headers) as answer:
        assert answer.status == 200, await answer.text()


def _with_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return _asked(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})


def _asked(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "temperature": 0, **more}


@pytest.mark.parametrize("vllm_server", [EMBEDDING], indirect=True)
@pytest.mark.parametrize("scenario", POOLING, ids=names(POOLING))
async def test_client_of_a_pooling_model(ours: Clients, scenario: Scenario) -> None:
    await scenario(ours)


@pytest.mark.parametrize("case", OTHERS, ids=lambda case: f"{case[0]} {case[1]}")
async def test_answers_are_the_worker_s_own(gate: Front, vllm_server: VllmServer, case: Case) -> None:
    await _compare(gate, vllm_server, case)


@pytest.mark.parametrize("vllm_server", [EMBEDDING], indirect=True)
@pytest.mark.parametrize("case", POOLED, ids=lambda case: f"{case[0]} {case[1]}")
async def test_answers_of_a_pooling_model_are_its_own(gate: Front, vllm_server: VllmServer, case: Case) -> None:
    await _compare(gate, vllm_server, case)


async def test_one_conversation_is_one_prompt_whatever_api_it_comes_by(vllm_server: VllmServer) -> None:
    """So what one of them has computed serves the others, and routing may key all of them alike."""
    turns = [{"role": "user", "content": "What is the weather like tomorrow, and the day after? " * 4}]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": turns, "max_tokens": 2},
        "/v1/responses": {"input": turns, "max_output_tokens": 2},
        "/v1/messages": {"model": vllm_server.options.model, "messages": turns, "max_tokens": 2},
    }
    ids, usages = [], []
    for path, body in bodies.items():
        status, rendered = await direct(vllm_server, f"{path}/render", body, key=vllm_server.options.api_key)
        assert status == 200, rendered
        ids.append(json.loads(rendered)["token_ids"])
        _, answer = await direct(vllm_server, path, body | {"cache_salt": "t"}, key=vllm_server.options.api_key)
        usages.append(json.loads(answer)["usage"])
    assert ids[0] == ids[1] == ids[2]
    assert usages[0]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = usages[1]["input_tokens_details"]["cached_tokens"], usages[2]["cache_read_input_tokens"]
    assert cached[0] == cached[1] > 0


async def _compare(gate: Front, server: VllmServer, case: Case) -> None:
    path, name, body = case
    asked, key = {"model": server.options.model} | body, server.options.api_key
    await direct(server, path, asked | {"cache_salt": SALT}, key=key)  # so that both find the same in cache
    await asyncio.sleep(0.1)  # the blocks of its answer are freed after its last byte
    given = []
    for _ in range(ATTEMPTS):
        status, expected = await direct(server, path, asked | {"cache_salt": SALT}, key=key)
        assert status == 200, (name, expected)
        given.append(timeless(expected))
        status, _, got = await gate.post(path, asked)
        assert status == 200, (name, got)
        if timeless(got) in given:
            return
    assert (name, timeless(got)) == (name, given[-1])
