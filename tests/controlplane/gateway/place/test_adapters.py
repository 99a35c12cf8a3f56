"""Requests for adapters (LoRA) of a pool: sent under the adapter's name, keyed by the worker alone, each time anew."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cachefleet_controlplane.gateway.know.render_cache import RenderCache
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.adapter_reports import AdapterReport
from cachefleet_core.pool.spec import read_pool
from cachefleet_core.report_frames import Capability
from tests.controlplane.gateway.harness import INDEX_KEY, MODEL, Front, chat, engine, front, pool
from tests.fakes.engine import FakeEngine
from tests.reference.adapter_loading import ASSUMED_SECONDS

KEYED = (Capability(feature="keys", mode="render"),)


@asynccontextmanager
async def adapted(**options: Any) -> AsyncIterator[tuple[FakeEngine, Front]]:
    """A worker whose engine answers to its adapter's name alone."""
    async with engine(model="sql", **options) as worker, front([worker], render_cache=RenderCache()) as gate:
        declared = pool().model_dump(mode="json", by_alias=True, exclude_none=True)
        declared["spec"]["model"]["adapters"] = [{"name": "sql", "source": "/weights/sql"}]
        gate.fleet.update_pools([PoolView(read_pool(declared), gate.endpoints())])
        yield worker, gate


async def test_an_adapter_is_served_by_its_name_and_keyed_anew_by_the_worker_each_time() -> None:
    async with adapted(plugin=True, index_key=INDEX_KEY) as (worker, gate):
        gate.report(0, said={"capabilities": KEYED})
        for _ in range(2):
            status, headers, data = await gate.chat("hello " * 40, model="sql")
            assert (status, headers["x-cachefleet-knowledge"]) == (200, "exact"), data
        assert [one.path for one in worker.requests] == ["/v1/fleet/keys", "/v1/chat/completions"] * 2
        assert {json.loads(one.body)["model"] for one in worker.requests} == {"sql"}
        assert {record.model for record in gate.records} == {"sql"}


async def test_without_the_plugins_keys_an_adapters_blocks_are_not_guessed() -> None:
    async with adapted() as (worker, gate):
        gate.report(0)
        status, headers, _ = await gate.chat("hello " * 40, model="sql")
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "load")
        assert worker.requests[-1].path == "/v1/chat/completions"


async def test_a_request_counts_what_loading_its_adapter_takes_where_the_device_is_full_of_others() -> None:
    async with adapted() as (_, gate):
        gate.report(0, adapters=AdapterReport(served=("sql", "other"), busy=("other",), slots=1))
        assert (await gate.chat("hello", model="sql"))[0] == 200
        (candidate,) = gate.records[0].candidates
        assert candidate.adapter_seconds == ASSUMED_SECONDS


async def test_adapters_are_listed_with_their_model() -> None:
    async with adapted() as (_, gate), gate.http.get(f"{gate.url}/v1/models") as answer:
        listed = {one["id"]: one.get("parent") for one in (await answer.json())["data"]}
        assert listed == {MODEL: None, "sql": MODEL}
    async with adapted() as (_, gate):
        status, _, data = await gate.post("/v1/chat/completions", chat("hello", model="other"))
        message = "The model `other` does not exist. Valid names: fake, sql."
        assert (status, json.loads(data)["error"]["message"]) == (404, message)


async def test_where_no_worker_has_the_adapter_yet_the_client_is_told_to_try_again() -> None:
    async with adapted() as (worker, gate):
        gate.report(0, said={"adapters": ()})
        status, headers, data = await gate.chat("hello", model="sql")
        assert (status, headers["retry-after"]) == (503, "2"), data
        assert json.loads(data)["error"]["message"].startswith("No worker of model `sql` is ready.")
        assert not worker.requests


async def test_nobody_loads_adapters_through_the_gateway() -> None:
    async with adapted(loads_adapters=True) as (worker, gate):
        for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            status, _, _ = await gate.post(path, {"lora_name": "sql", "lora_path": "/etc"})
            assert status == 404
        assert not worker.requests
