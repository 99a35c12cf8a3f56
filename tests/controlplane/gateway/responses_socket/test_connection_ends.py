"""Connections to their end: clients that go, that do not read or do not stop; servers that stop; too long a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.responses_socket.socket_limits import MAX_REFUSED, MAX_WAITING, SocketLimits
from cachefleet_controlplane.gateway.retry.exchange import Exchange
from tests.controlplane.gateway.harness import Front, engine, front
from tests.controlplane.gateway.responses_socket.sockets import answer, ask, closed, connected, create, respond
from tests.controlplane.gateway.retry.test_failover import serving
from tests.controlplane.gateway.test_slow_clients import Floods
from tests.controlplane.waiting import until, value
from tests.fakes.engine import FakeEngine

pytestmark = [pytest.mark.requirement("A24"), pytest.mark.usefixtures("hurried")]

SMALL = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=10, send_seconds=0.5, stall_seconds=3)


async def under_way(gate: Front, worker: FakeEngine, socket: ClientConnection) -> None:
    """A request that its worker does not go on with."""
    worker.worker.going.clear()
    await socket.send(create("slow"))
    await until(lambda: gate.gateway.under_way == 1)


async def test_what_is_asked_meanwhile_waits_its_turn() -> None:
    async with engine() as worker, front([worker]) as gate, connected(gate) as socket:
        await under_way(gate, worker, socket)
        await socket.send("{")
        await socket.send(create("second", max_output_tokens=2))
        worker.worker.going.set()
        first, wrong, second = [(await answer(socket))[-1] for _ in range(3)]
    assert [event["type"] for event in (first, wrong, second)] == ["response.completed", "error", "response.completed"]
    assert second["response"]["usage"]["output_tokens"] == 2
    assert len(gate.records) == 2


async def test_too_many_that_wait_are_refused_each_in_its_turn() -> None:
    async with engine() as worker, front([worker]) as gate, connected(gate) as socket:
        await under_way(gate, worker, socket)
        for _ in range(MAX_WAITING + 1):
            await socket.send(create())
        assert gate.gateway.under_way == 1
        worker.worker.going.set()
        kinds = [(await answer(socket))[-1] for _ in range(MAX_WAITING + 2)]
        assert [event["type"] for event in kinds] == ["response.completed"] * (MAX_WAITING + 1) + ["error"]
        assert (kinds[-1]["status"], kinds[-1]["error"]["code"]) == (429, "too_many_waiting")
        assert await respond(socket)
    assert gate.gateway.bodies.held_bytes == 0


async def test_a_client_that_never_stops_is_closed() -> None:
    async with engine() as worker, front([worker]) as gate, connected(gate) as socket:
        await under_way(gate, worker, socket)
        for _ in range(MAX_WAITING + MAX_REFUSED + 1):
            await socket.send("{}")
        worker.worker.going.set()
        assert (await closed(socket))[0] == 1008
        await until(lambda: value(gate.metrics, "websocket_ends_total", reason="flood") == 1)


async def test_what_waits_takes_of_the_budget_of_bodies() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=30, requests=10, buffered_bytes=20_000)
    async with engine() as worker, front([worker], bounds=bounds) as gate, connected(gate) as socket:
        await under_way(gate, worker, socket)
        for _ in range(2):
            await socket.send(create("x" * 8000))
        worker.worker.going.set()
        kinds = [(await answer(socket))[-1] for _ in range(3)]
        assert [event.get("status") for event in kinds] == [None, None, 503]
        assert gate.gateway.bodies.held_bytes == 0


async def test_a_client_that_goes_frees_its_worker() -> None:
    slow = {"inter_token_seconds": 0.5, "natural_tokens": 200}
    async with engine(**slow) as worker, front([worker]) as gate:
        async with connected(gate) as socket:
            await socket.send(create(max_output_tokens=200))
            assert "response.created" in str(await socket.recv())
            assert worker.worker.scheduler.busy
            worker.worker.going.clear()  # it says nothing more that could not be sent
        await until(lambda: gate.gateway.under_way == 0)
        worker.worker.going.set()
        await until(lambda: not worker.worker.scheduler.busy)
        assert gate.fleet.view().inflight_requests == 0
        assert [attempt.outcome for attempt in gate.records[0].attempts] == ["cancelled"]
        assert value(gate.metrics, "client_disconnects_total") == 1
        await until(lambda: value(gate.metrics, "websocket_connections") == 0)


async def test_a_client_that_does_not_read_frees_its_worker() -> None:
    delta = json.dumps({"type": "response.output_text.delta", "delta": "x" * 4096}).encode()
    flooding = Floods(b"event: response.output_text.delta\ndata: " + delta + b"\n\n")
    async with serving(flooding) as worker, front([worker], bounds=SMALL) as gate, connected(gate) as socket:
        await socket.send(create())
        await until(lambda: gate.gateway.under_way == 1)
        socket.transport.pause_reading()
        await until(lambda: gate.gateway.under_way == 0)
        await asyncio.wait_for(flooding.left.wait(), 30)
        await until(lambda: value(gate.metrics, "websocket_connections") == 0)
        assert gate.server is not None
        server = gate.server
        await until(lambda: not server.connections)
        socket.transport.abort()
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["cancelled"]


async def test_a_message_over_the_limit_of_bodies_closes_the_connection() -> None:
    async with engine() as worker, front([worker], bounds=SMALL) as gate, connected(gate) as socket:
        await respond(socket)
        await socket.send("x" * 10_001)
        assert (await closed(socket))[0] == 1009


async def test_an_idle_connection_is_closed() -> None:
    limits = SocketLimits(idle_seconds=5)
    async with engine() as worker, front([worker], sockets=limits) as gate, connected(gate) as socket:
        await respond(socket)
        code, reason = await closed(socket)
        assert (code, reason) == (1001, "nothing was asked for 5 s: connect again")
        await until(lambda: value(gate.metrics, "websocket_ends_total", reason="idle") == 1)


async def test_after_its_time_a_connection_ends_behind_the_answer_under_way() -> None:
    limits = SocketLimits(seconds=5)
    async with engine() as worker, front([worker], sockets=limits) as gate, connected(gate) as socket:
        await under_way(gate, worker, socket)
        await asyncio.sleep(6)
        worker.worker.going.set()
        assert (await answer(socket))[-1]["type"] == "response.completed"
        (last,) = await answer(socket)
        assert (last["status"], last["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert (await closed(socket))[0] == 1001


async def test_a_server_that_stops_ends_the_answer_under_way_and_closes() -> None:
    async with engine() as worker, front([worker], drain_seconds=60) as gate:
        assert gate.server is not None
        async with connected(gate) as busy, connected(gate) as idle:
            await respond(idle)
            await under_way(gate, worker, busy)
            await busy.send(create("another"))
            gate.server.stop()
            assert (await closed(idle))[0] == 1012
            assert gate.gateway.under_way == 1
            worker.worker.going.set()
            assert (await answer(busy))[-1]["type"] == "response.completed"
            code, reason = await closed(busy)
            assert (code, reason) == (1012, "the server restarts: connect again")
        assert len(gate.records) == 2


@pytest.mark.parametrize("begun", [False, True])
async def test_an_answer_that_is_not_finished_in_time_ends_with_an_error_and_the_connection_with_1012(
    *, begun: bool
) -> None:
    async with engine(inter_token_seconds=0.2) as worker, front([worker], drain_seconds=60) as gate:
        assert gate.server is not None
        async with connected(gate) as socket:
            if begun:
                await socket.send(create("slow", max_output_tokens=500))
                while json.loads(await socket.recv())["type"] != "response.output_text.delta":
                    pass
            else:
                await under_way(gate, worker, socket)
            gate.server.stop()
            gate.gateway.end_answers()
            last = (await answer(socket))[-1]
            assert (last["type"], last["status"], last["error"]["code"]) == ("error", 503, "server_restarting")
            assert (await closed(socket))[0] == 1012
            worker.worker.going.set()
        told = [(record.status, [attempt.outcome for attempt in record.attempts]) for record in gate.records]
        assert told == ([(200, ["restarted"])] if begun else [])  # nothing was decided on
        assert value(gate.metrics, "answers_stopped_total") == 1


async def test_an_answer_that_takes_longer_than_the_server_has_is_broken_off() -> None:
    async with engine() as worker, front([worker]) as gate, connected(gate) as socket:
        assert gate.server is not None
        await under_way(gate, worker, socket)
        gate.server.stop()
        await until(lambda: gate.gateway.under_way == 0)
        await socket.wait_closed()
        worker.worker.going.set()


async def test_a_defect_in_one_request_fails_this_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine() as worker, front([worker]) as gate, connected(gate) as socket:
        with monkeypatch.context() as broken:

            def fail(*_: Any, **__: Any) -> None:
                raise ZeroDivisionError

            broken.setattr(Exchange, "run", fail)
            last = await ask(socket, create())
        assert (last["status"], last["error"]["code"]) == (500, "500")
        assert await respond(socket)
