"""Models by other names than their own: by a header, for clients of llm-d, and by aliases; for the picker, too."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.gateway.apis.request_info import POOLED
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from cachefleet_runtime.sse import event_data
from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, events, front, pool
from tests.controlplane.gateway.picker.envoy_stub import picker
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

CHATS = "/v1/chat/completions"
HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")


@asynccontextmanager
async def adapted() -> AsyncIterator[tuple[FakeEngine, Front]]:
    """A worker of a model whose engine answers to the adapter "sql"."""
    async with engine(model="sql") as worker, front([worker]) as gate:
        declared = pool().model_dump(mode="json", by_alias=True, exclude_none=True)
        declared["spec"]["model"]["adapters"] = [{"name": "sql", "source": "/weights/sql"}]
        gate.fleet.update_pools([PoolView(read_pool(declared), gate.endpoints())])
        yield worker, gate


@pytest.mark.parametrize("header", HEADERS)
async def test_the_gateway_sends_the_model_of_the_header(header: str) -> None:
    async with adapted() as (worker, gate):
        status, _, data = await gate.post(CHATS, chat("hello"), **{header: "sql"})
        assert status == 200, data
        assert json.loads(worker.requests[-1].body)["model"] == "sql"
        assert [record.model for record in gate.records] == ["sql"]


async def test_a_header_that_names_no_model_is_404_and_an_empty_one_is_none() -> None:
    async with engine() as worker, front([worker]) as gate:
        status, _, data = await gate.post(CHATS, chat("hello"), **{HEADERS[0]: "gpt"})
        assert (status, json.loads(data)["error"]["code"]) == (404, "model_not_found")
        assert not worker.requests
        assert (await gate.post(CHATS, chat("hello"), **{HEADERS[0]: ""}))[0] == 200
        assert json.loads(worker.requests[-1].body)["model"] == MODEL


async def test_the_picker_has_envoy_send_the_model_of_the_header() -> None:
    async with adapted() as (_, gate), picker(gate) as envoy:
        asking, picked = await envoy.ask(chat("hello"), headers={HEADERS[0]: "sql"})
        assert json.loads(picked.body)["model"] == "sql"
        asking.leave()


ALIASES = {"aliases": ["gpt-4o-mini", "claude-*"]}
BODIES: dict[str, dict[str, Any]] = {
    CHATS: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4},
}


def serving(model: str, **more: Any) -> PrefixCachePool:
    """A pool of its own of a model."""
    declared = pool(model=model).model_dump(mode="json", by_alias=True, exclude_none=True)
    declared["metadata"]["name"] = f"pool-{model}"
    declared["spec"]["model"] |= more
    return read_pool(declared)


@asynccontextmanager
async def renamed(**model: Any) -> AsyncIterator[tuple[FakeEngine, Front]]:
    """A worker of a model that has aliases."""
    async with engine() as worker, front([worker]) as gate:
        gate.fleet.update_pools([PoolView(serving(MODEL, **(ALIASES | model)), gate.endpoints())])
        yield worker, gate


def names_in(data: bytes) -> set[str]:
    """The model in a whole answer, or in all events of a stream that name one."""
    found: set[str] = set()
    whole = [data] if data.startswith(b"{") else [event_data(event) for event in data.split(b"\n\n")]
    for one in map(json.loads, (each for each in whole if each.startswith(b"{"))):
        held = one.get("response") or one.get("message") or one
        found |= {held["model"]} if "model" in held else set()
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("asked", ["gpt-4o-mini", "claude-haiku-4-5-20251001", f"default/{MODEL}", "default/claude-x"])
async def test_an_answer_names_the_model_as_it_was_asked_for(path: str, asked: str, *, stream: bool) -> None:
    async with renamed() as (worker, gate):
        status, _, data = await gate.settled(path, BODIES[path] | {"model": asked, "stream": stream})
        assert (status, names_in(data)) == (200, {asked})
        assert json.loads(worker.requests[-1].body)["model"] == MODEL
        assert [record.model.rpartition("/")[2] for record in gate.records] == [MODEL], "accounts have the model's own"


async def test_a_long_stream_names_it_in_every_event_and_changes_nothing_else() -> None:
    async with renamed() as (_, gate):
        body = BODIES[CHATS] | {"max_tokens": 40, "stream": True, "seed": 1, "temperature": 0}
        own = await gate.settled(CHATS, body | {"model": MODEL})
        named = await gate.settled(CHATS, body | {"model": "gpt-4o-mini"})
        texts = [
            [json.loads(event)["choices"] for event in events(data) if event.startswith(b"{")]
            for _, _, data in (own, named)
        ]
        assert texts[0] == texts[1]
        assert names_in(named[2]) == {"gpt-4o-mini"}


async def test_counting_and_embedding_go_by_aliases_too() -> None:
    async with renamed() as (worker, gate):
        body = BODIES["/v1/messages"] | {"model": "claude-haiku-4-5"}
        assert (await gate.post("/v1/messages/count_tokens?beta=true", body))[0] == 200
        status, _, data = await gate.post("/v1/embeddings", {"model": "gpt-4o-mini", "input": "hello"})
        assert status == 404 or names_in(data) == {"gpt-4o-mini"}
        assert json.loads(worker.requests[-1].body)["model"] == MODEL


async def test_what_no_alias_means_is_404_with_the_names_that_there_are() -> None:
    async with renamed() as (worker, gate):
        status, _, data = await gate.post("/v1/messages", BODIES["/v1/messages"] | {"model": "gpt-5"})
        told = json.loads(data)["error"]
        assert (status, told["type"]) == (404, "not_found_error")
        assert told["message"].endswith(f"Valid names: {MODEL}, claude-*, gpt-4o-mini.")
        assert not worker.requests


async def test_aliases_that_are_names_are_listed_and_patterns_can_be_asked_about() -> None:
    async with renamed() as (_, gate), clients(gate.url, model=MODEL).openai as openai:
        listed = [(one.id, getattr(one, "root", None)) async for one in openai.models.list()]
        assert listed == [(MODEL, None), ("gpt-4o-mini", MODEL)]
        assert (await openai.models.retrieve("claude-opus-4-1")).id == "claude-opus-4-1"
        async with clients(gate.url, model=MODEL).anthropic as anthropic:
            page = await anthropic.models.list()
            assert [(one.id, one.display_name) for one in page.data] == [(n, n) for n in (MODEL, "gpt-4o-mini")]
            told = await anthropic.messages.create(
                model="claude-x", max_tokens=4, messages=[{"role": "user", "content": "hello"}]
            )
            assert told.model == "claude-x"


@asynccontextmanager
async def sharing(weight: int = 30) -> AsyncIterator[tuple[list[FakeEngine], Front]]:
    """Two models that share an alias, the second with that weight of 100, each with a worker."""
    async with engine() as stable, engine(model="next") as new, front([stable, new]) as gate:
        here = gate.endpoints()
        shared: dict[str, Any] = {"aliases": ["chat"]}
        gate.fleet.update_pools(
            [
                PoolView(serving(MODEL, aliasWeight=100 - weight, **shared), here[:1]),
                PoolView(serving("next", aliasWeight=weight, **shared), here[1:], place=1),
            ]
        )
        yield [stable, new], gate


async def test_each_model_of_an_alias_gets_its_share_of_conversations_and_keeps_each() -> None:
    async with sharing() as (_, gate):
        for turn in range(3):
            for number in range(40):
                said = [{"role": "user", "content": f"about {number}"}, *[{"role": "user", "content": "go on"}] * turn]
                status, _, data = await gate.chat("", model="chat", messages=said)
                assert (status, names_in(data)) == (200, {"chat"})
        await until(lambda: len(gate.records) == 120)
        served = [record.model for record in gate.records]
        assert served[:40] == served[40:80] == served[80:]
        assert 4 <= served[:40].count("next") <= 20


async def test_an_alias_of_two_models_is_served_by_the_one_that_has_a_ready_worker() -> None:
    async with sharing(weight=50) as (_, gate):
        views = [PoolView(serving(MODEL, aliases=["chat"]), gate.endpoints()[:1])]
        gate.fleet.update_pools([*views, PoolView(serving("next", aliases=["chat"]), (), place=1)])
        assert {(await gate.chat(f"about {number}", model="chat"))[0] for number in range(8)} == {200}


async def test_the_picker_has_envoy_send_the_model_of_an_alias() -> None:
    async with renamed() as (_, gate), picker(gate) as envoy:
        asking, picked = await envoy.ask(chat("hello", model="claude-x"))
        assert json.loads(picked.body)["model"] == MODEL
        asking.leave()


async def test_an_alias_that_models_share_is_listed_with_all_of_them() -> None:
    async with sharing() as (_, gate), clients(gate.url, model=MODEL).openai as openai:
        listed = {one.id: one.model_dump() async for one in openai.models.list()}
        assert listed["chat"]["roots"] == [MODEL, "next"]
        assert "root" not in listed["chat"]
        assert not any("roots" in told for name, told in listed.items() if name != "chat")


@pytest.mark.parametrize("path", POOLED)
async def test_a_model_without_an_endpoint_names_those_that_have_it(path: str) -> None:
    async with sharing() as (engines, gate):
        gate.report(0, said={"endpoints": (CHATS,), "pool": f"default/pool-{MODEL}"})
        gate.report(1, said={"endpoints": (CHATS,), "pool": "default/pool-next"})
        asked = {"model": MODEL, "input": "hello"}
        status, _, data = await gate.post(path, asked)
        message = json.loads(data)["error"]["message"]
        assert (status, "No model here has it: a pool of a pooling model" in message) == (404, True), message
        gate.report(1, said={"endpoints": (path,), "pool": "default/pool-next"})
        status, _, data = await gate.post(path, asked)
        told = f"The model `{MODEL}` has no {path}. Ask `next`."
        assert (status, json.loads(data)["error"]["message"]) == (404, told)
        assert not [one for worker in engines for one in worker.requests]
