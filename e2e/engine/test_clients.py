"""The official clients, unchanged, through the gateway, before real vLLM; and answers compared byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from e2e.engine.vllm import VllmOptions, VllmServer
from tests.controlplane.gateway.apis.client_scenarios import GENERATING, POOLING, names
from tests.controlplane.gateway.apis.client_setup import Clients, Scenario, clients
from tests.controlplane.gateway.apis.test_output_schemas import ENDLESS, TREE
from tests.controlplane.gateway.cases import CHAT, OTHERS, POOLED, Case, timeless
from tests.controlplane.gateway.harness import SALT, Front, direct, front

ATTEMPTS: Final = 40
"""vLLM puts tokens that a busy server could not send in time into one event; that differs from time to time."""
SILENCE_SECONDS: Final = 120.0
"""vLLM loads its grammars' library with the first request that has one, and says nothing meanwhile."""
WITH_TOOLS: Final = VllmOptions(
    extra=(
        *("--enable-auto-tool-choice", "--tool-call-parser=hermes"),
        # A random model under a grammar that allows blanks anywhere says nothing else.
        '--structured-outputs-config={"backend":"xgrammar","disable_any_whitespace":true}',
    )
)
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
