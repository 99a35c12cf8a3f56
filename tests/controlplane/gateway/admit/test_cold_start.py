"""Models without a ready worker: requests are held until one is warm, within bounds, and counted as demand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.pools.source import PoolView
from tests.controlplane.gateway.harness import MODEL, Front, Known, chat, engine, front, pool
from tests.controlplane.gateway.tenancies import ACME, KEYS, UMBRELLA, directory
from tests.controlplane.waiting import until, value

pytestmark = pytest.mark.usefixtures("hurried")

CHAT = "/v1/chat/completions"
ASKS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [{"role": "user", "content": "x"}]}),
    (CHAT, {"messages": [{"role": "user", "content": "x"}], "stream": True}),
    ("/v1/completions", {"prompt": [1, 2, 3]}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}),
]
Answer = tuple[int, dict[str, str], bytes]


@asynccontextmanager
async def at_zero(admission: str = "{coldStartSeconds: 150}", **options: Any) -> AsyncIterator[Front]:
    """A gateway whose pool has no workers yet, but will have one."""
    async with engine() as worker, front([worker], **({"admission": admission} | options)) as gate:
        declare(gate, admission, workers=False)
        yield gate


def declare(gate: Front, admission: str = "{coldStartSeconds: 150}", *, workers: bool) -> None:
    """The pool has its worker, or none."""
    gate.fleet.update_pools([PoolView(pool(admission=admission), gate.endpoints() if workers else ())])


def asking(gate: Front, text: str = "x", **headers: str) -> asyncio.Task[Answer]:
    return asyncio.create_task(gate.post(CHAT, chat(text), **headers))


def unserved(gate: Front) -> int:
    return gate.fleet.view().pools[0].unserved_requests


def held_now(gate: Front) -> int:
    return gate.fleet.demands.of(("default", MODEL)).held


def waits(gate: Front, outcome: str) -> float:
    return value(gate.metrics, "cold_start_seconds_count", outcome=outcome)


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_a_request_at_zero_workers_is_answered_once_one_is_ready(path: str, body: dict[str, Any]) -> None:
    async with at_zero() as gate:
        async with gate.http.get(gate.url + "/v1/models") as models:
            assert [model["id"] for model in (await models.json())["data"]] == [MODEL]
        held = asyncio.create_task(gate.post(path, {"model": MODEL} | body))
        await until(lambda: unserved(gate) == 1)
        await asyncio.sleep(30)
        assert not held.done()
        declare(gate, workers=True)
        status, headers, _ = await held
        assert (status, headers["x-cachefleet-worker"]) == (200, "demo-0")
        await until(lambda: bool(gate.records))
        assert (gate.records[-1].queued_seconds or 0) > 25
        assert (unserved(gate), waits(gate, "served")) == (0, 1)


async def test_where_no_worker_comes_in_time_it_is_refused_and_told_when_to_ask_again() -> None:
    async with at_zero() as gate:
        status, headers, answer = await asking(gate)
        assert status == 503
        assert 2 <= int(headers["retry-after"]) <= 60
        assert f"No worker of model `{MODEL}` is ready" in json.loads(answer)["error"]["message"]
        assert waits(gate, "timeout") == 1


@pytest.mark.parametrize("admission", ["{}", "{coldStartSeconds: 0}"])
async def test_by_default_it_is_not_held_and_counts_as_demand_for_a_minute(admission: str) -> None:
    async with at_zero(admission) as gate:
        assert (await asking(gate))[0] == 503
        assert len(gate.fleet.demands.of(("default", MODEL))._refused) == 1
        assert sum(waits(gate, outcome) for outcome in ("served", "timeout", "gone", "full")) == 0
        await asyncio.sleep(70)
        assert unserved(gate) == 0


async def test_a_client_that_leaves_takes_its_request_along() -> None:
    async with at_zero() as gate:
        held = asking(gate)
        await until(lambda: unserved(gate) == 1)
        held.cancel()
        await until(lambda: unserved(gate) == 0)
        assert waits(gate, "gone") == 1
        declare(gate, workers=True)
        assert (await asking(gate))[0] == 200


async def test_one_tenant_holds_half_of_the_places_at_most_and_others_find_room() -> None:
    async with at_zero(known=Known(directory(ACME, UMBRELLA)), queue_requests=8) as gate:
        acme, umbrella = ({"authorization": f"Bearer {KEYS[tenant.name]}"} for tenant in (ACME, UMBRELLA))
        held = [asking(gate, f"{number}", **acme) for number in range(4)]
        await until(lambda: held_now(gate) == 4)
        assert (await asking(gate, "5", **acme))[0] == 503
        assert waits(gate, "full") == 1
        held.append(asking(gate, "6", **umbrella))
        await until(lambda: held_now(gate) == 5)
        declare(gate, workers=True)
        assert {status for status, _, _ in await asyncio.gather(*held)} == {200}


async def test_held_bodies_have_a_part_of_the_memory_of_all() -> None:
    bounds = GatewayBounds(body_bytes=1 << 20, body_seconds=30, requests=100, buffered_bytes=1 << 15)
    async with at_zero(bounds=bounds) as gate:
        held = asking(gate, "x" * 3_000)  # of 8,192, of which a tenant has half at most
        await until(lambda: held_now(gate) == 1)
        assert (await asking(gate, "y" * 3_000))[0] == 503
        declare(gate, workers=True)
        assert (await held)[0] == 200
        assert (await asking(gate, "y" * 3_000))[0] == 200


async def test_what_was_held_waits_for_room_longer_than_what_was_not() -> None:
    """All come to the first worker at once, and maxQueueSeconds is for requests that come one by one."""
    admission = "{coldStartSeconds: 280, maxQueueSeconds: 1}"
    options: dict[str, Any] = {"num_blocks": 40, "natural_tokens": 10_000, "inter_token_seconds": 0.05}
    async with engine(**options) as worker, front([worker], admission=admission, queue_requests=64) as gate:
        declare(gate, admission, workers=False)
        held = [
            asyncio.create_task(gate.chat(f"{number:<300}", max_tokens=100, ignore_eos=True)) for number in range(4)
        ]
        await until(lambda: unserved(gate) == 4)
        declare(gate, admission, workers=True)
        gate.report(0, **gate.load(0))
        while not all(answer.done() for answer in held):
            await asyncio.sleep(0.5)
            gate.report(0, **gate.load(0))
        assert [answer.result()[0] for answer in held] == [200] * 4
        assert value(gate.metrics, "queue_wait_seconds_count", outcome="served") > 0


async def test_requests_are_let_go_with_their_pool() -> None:
    async with at_zero() as gate:
        held = asking(gate)
        await until(lambda: unserved(gate) == 1)
        gate.fleet.update_pools([])
        assert (await held)[0] == 503
        assert waits(gate, "timeout") == 0


async def test_what_is_asked_for_only_if_it_is_cached_neither_waits_nor_counts_as_demand() -> None:
    async with at_zero() as gate:
        assert (await asking(gate, prefer="if-available"))[0] == 503
        assert (unserved(gate), waits(gate, "timeout")) == (0, 0)


async def test_a_replica_that_stops_tells_those_that_it_holds_to_ask_again() -> None:
    async with at_zero() as gate:
        held = asking(gate)
        await until(lambda: held_now(gate) == 1)
        gate.gateway.end_answers()
        status, headers, answer = await held
        assert (status, held_now(gate)) == (503, 0)
        assert "restart" in json.loads(answer)["error"]["message"].lower()
        assert int(headers["retry-after"]) > 0


async def test_while_an_engine_sleeps_nothing_is_held() -> None:
    """Somebody has to wake it, and more workers would not."""
    async with engine() as worker, front([worker], admission="{coldStartSeconds: 150}") as gate:
        gate.report(0, suspended="asleep")
        status, headers, _ = await asking(gate)
        assert (status, headers["retry-after"], unserved(gate)) == (503, "10", 0)
