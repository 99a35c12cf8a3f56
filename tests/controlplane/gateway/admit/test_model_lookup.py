"""The model that a header names in place of the body's, for clients of llm-d: in the gateway and for the picker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.spec import read_pool
from tests.controlplane.gateway.harness import MODEL, Front, chat, engine, front, pool
from tests.controlplane.gateway.picker.envoy_stub import picker
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
