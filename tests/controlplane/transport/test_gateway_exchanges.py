"""The gateway between raw clients and raw workers: what is given back, freed and bounded, whoever moves the bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.retry.exchange import Exchange
from cachefleet_controlplane.gateway.retry.worker_choice import WorkerChoice
from cachefleet_controlplane.transport.native_exchange import NativeExchange, NativeReply
from cachefleet_controlplane.wire.http_exchange import WholeBody
from tests.controlplane.gateway.harness import chat, engine
from tests.controlplane.leftovers import collector_off, gone
from tests.controlplane.transport.raw_client import Connection, Response, chunk, posted, request
from tests.controlplane.transport.transports import Gate, gateway
from tests.controlplane.transport.workers.fake_raw_worker import (
    CHUNKED,
    STREAM,
    End,
    FakeRawWorker,
    Step,
    fake_raw_worker,
    head,
    streamed,
    whole,
)
from tests.controlplane.waiting import until, value

CHAT = b"/v1/chat/completions"
KIB = 1024
BOUNDS = GatewayBounds(body_bytes=256 * KIB, body_seconds=30, requests=100, buffered_bytes=1 << 20)
FIRST = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
LEAVES = pytest.mark.parametrize("leave", [Connection.close, Connection.reset, Connection.half_close])


def _chat(text: str = "hello", **changes: Any) -> bytes:
    return posted(json.dumps(chat(text, **changes)).encode(), CHAT, b"content-type: application/json")


async def _asked(gate: Gate, sent: bytes) -> Response:
    async with await gate.connect() as connection:
        await connection.send(sent)
        return await connection.response()


def _chats(worker: FakeRawWorker) -> list[bytes]:
    """The requests that a worker is to answer; it answers those about its prompts as well."""
    return [asked for asked in worker.requests if asked.startswith(b"POST " + CHAT + b" ")]


def _worker(*steps: Step) -> Any:
    """A fake worker that knows no other path than that of chats."""
    return fake_raw_worker(list(steps), others=[whole(b'{"detail":"Not Found"}', status=b"404 Not Found")], path=CHAT)


async def test_a_whole_answer_comes_through() -> None:
    async with engine() as worker, gateway(worker) as gate:
        response = await _asked(gate, _chat())
    assert (response.status, response.field(b"content-type")) == (200, b"application/json")
    assert response.field(b"content-length") == b"%d" % len(response.body)
    assert json.loads(response.body)["choices"][0]["finish_reason"] == "length"
    assert response.field(b"x-cachefleet-worker") == b"demo-0"


ASKED: dict[str, dict[str, Any]] = {
    "whole": {},
    "stream": {"stream": True},
    "usage": {"stream": True, "stream_options": {"include_usage": True}},
    "ids": {"stream": True, "return_token_ids": True},
    "two": {"stream": True, "n": 2, "temperature": 1, "seed": 7},
    "stop": {"stream": True, "stop": ["e", "a"], "max_tokens": 20},
    "refused": {"max_tokens": -1},
    "unknown": {"model": "another"},
}


@pytest.mark.parametrize("name", ASKED)
async def test_nothing_of_a_request_stays_until_a_garbage_collection(name: str) -> None:
    async with engine() as worker, gateway(worker) as gate:
        with collector_off():
            for text in ("hello", "hello" * 20 * KIB):  # the second one's body comes in pieces
                await _asked(gate, _chat(text, **ASKED[name]))
            await gone(Exchange, WorkerChoice, NativeExchange, NativeReply, WholeBody)


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async with engine() as worker, gateway(worker) as gate, await gate.connect() as connection:
        await connection.send(_chat("one") + _chat("two", stream=True) + request(b"/v1/models") + _chat("three"))
        told = [await connection.response() for _ in range(4)]
    assert [one.status for one in told] == [200] * 4
    assert [one.field(b"x-cachefleet-decision") for one in told] == [b"d1", b"d2", None, b"d3"]
    assert told[1].body.endswith(DONE)


@LEAVES
@pytest.mark.parametrize("framing", [b"content-length: 200000", b"transfer-encoding: chunked"])
async def test_the_bytes_of_a_body_are_given_back_where_its_client_leaves(framing: bytes, leave: Any) -> None:
    async with _worker(whole()) as worker, gateway(worker, bounds=BOUNDS) as gate:
        held = gate.front.gateway.bodies
        async with await gate.connect() as connection:
            begun = b" " * 100_000
            await connection.send(request(CHAT, framing, method=b"POST"))
            await connection.send(begun if b"length" in framing else chunk(begun))
            await until(lambda: held.held_bytes > 0)
            leave(connection)
            await until(lambda: held.held_bytes == 0 and gate.front.gateway.under_way == 0)
        assert not _chats(worker)


async def test_a_body_that_stalls_is_a_408() -> None:
    bounds = GatewayBounds(body_bytes=1000, body_seconds=5, requests=10, stall_seconds=0.2)
    async with _worker(whole()) as worker, gateway(worker, bounds=bounds) as gate:
        async with await gate.connect() as connection:
            await connection.send(request(CHAT, b"content-length: 100", method=b"POST") + b"{")
            response = await connection.response()
            assert (response.status, response.closes) == (408, True)
            assert await connection.ended()
        assert gate.front.gateway.bodies.held_bytes == 0


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_its_limit_is_a_413_that_can_be_read(chunked: bool) -> None:  # noqa: FBT001
    async with _worker(whole()) as worker, gateway(worker, bounds=BOUNDS) as gate:
        async with await gate.connect() as connection:
            framing = b"transfer-encoding: chunked" if chunked else b"content-length: 4000000"
            await connection.send(request(CHAT, framing, method=b"POST"))
            for _ in range(40):
                await connection.send(chunk(b" " * 100_000) if chunked else b" " * 100_000)
            response = await connection.response()
            assert (response.status, response.closes) == (413, True)
            assert await connection.ended()
        await until(lambda: gate.front.gateway.bodies.held_bytes == 0)


@LEAVES
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_its_answer_frees_the_worker_at_once(
    stream: bool,  # noqa: FBT001 - a parameter
    leave: Any,
) -> None:
    async with _worker(End.SILENCE) as worker, gateway(worker) as gate:
        async with await gate.connect() as connection:
            await connection.send(_chat(stream=stream))
            await until(lambda: bool(_chats(worker)))
            leave(connection)
            await until(lambda: worker.left == 1 and gate.front.gateway.under_way == 0)
        await until(lambda: value(gate.front.metrics, "client_disconnects_total") == 1)
        assert gate.front.fleet.view().inflight_requests == 0


@LEAVES
async def test_a_client_that_leaves_within_its_stream_frees_the_worker_at_once(leave: Any) -> None:
    steps: tuple[Step, ...] = (head(STREAM, CHUNKED), chunk(FIRST), End.SILENCE)
    async with _worker(*steps) as worker, gateway(worker) as gate:
        async with await gate.connect() as connection:
            await connection.send(_chat(stream=True))
            await connection.reader.readuntil(FIRST)
            leave(connection)
            await until(lambda: worker.left == 1 and gate.front.gateway.under_way == 0)
        assert gate.front.fleet.view().inflight_requests == 0
    assert [attempt.outcome for attempt in gate.front.records[0].attempts] == ["cancelled"]


async def test_a_client_that_does_not_read_frees_its_worker() -> None:
    bounds = GatewayBounds(body_bytes=10_000, body_seconds=5, requests=10, send_seconds=0.3)
    flood: tuple[Step, ...] = (head(STREAM, CHUNKED), *[chunk(FIRST * 100)] * 10_000, End.SILENCE)
    async with _worker(*flood) as worker, gateway(worker, bounds=bounds) as gate:
        async with await gate.connect(receive_bytes=4096) as connection:
            await connection.send(_chat(stream=True))
            await until(lambda: gate.front.gateway.under_way == 1)
            await until(lambda: worker.left == 1 and gate.front.gateway.under_way == 0)
        assert value(gate.front.metrics, "client_disconnects_total") == 1


async def test_a_client_that_reads_slowly_slows_its_worker() -> None:
    flood: tuple[Step, ...] = (head(STREAM, CHUNKED), *[chunk(FIRST * 100)] * 10_000, End.SILENCE)
    async with _worker(*flood) as worker, gateway(worker) as gate:
        async with await gate.connect(receive_bytes=4096) as connection:
            await connection.send(_chat(stream=True))
            await _still(worker)
            before = worker.steps
            assert before * len(FIRST) * 100 < 48 << 20  # what the sockets' own buffers hold
            while worker.steps == before:
                await asyncio.wait_for(connection.reader.read(65536), 30)
        await until(lambda: worker.left == 1)


async def _still(worker: FakeRawWorker) -> None:
    before = -1
    while before != worker.steps or worker.steps < 2:
        before = worker.steps
        await asyncio.sleep(0.05)


async def test_a_stream_cut_at_every_byte_is_the_worker_s_own() -> None:
    stream = (
        FIRST + b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"\xc3\xa4"},"finish_reason":"stop"}]}\n\n'
    )
    stream += DONE
    for at in range(1, len(stream), 3):
        steps = (head(STREAM, CHUNKED), chunk(stream[:at]), 0.001, chunk(stream[at:]), chunk(b""))
        async with _worker(*steps) as worker, gateway(worker) as gate:
            assert (await _asked(gate, _chat(stream=True))).body == stream


async def test_an_attempt_that_breaks_before_its_answer_is_retried_elsewhere() -> None:
    async with _worker(End.RESET) as bad, engine() as good, gateway(bad, good) as gate:
        for number in range(4):
            response = await _asked(gate, _chat(f"request {number}", stream=bool(number % 2)))
            assert (response.status, response.field(b"x-cachefleet-worker")) == (200, b"demo-1")
        assert _chats(bad)


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    steps: tuple[Step, ...] = (head(STREAM, CHUNKED), chunk(FIRST), 0.01, End.RESET)
    async with _worker(*steps) as worker, gateway(worker) as gate:
        response = await _asked(gate, _chat(stream=True))
        assert response.body.startswith(FIRST)
        assert b'"error"' in response.body


async def test_connections_to_workers_are_kept() -> None:
    async with _worker(streamed(FIRST, DONE)) as worker, gateway(worker) as gate:
        for _ in range(20):
            assert (await _asked(gate, _chat(stream=True))).body == FIRST + DONE
        assert worker.connections <= 2


async def test_many_streams_at_once_are_each_their_own() -> None:
    async with engine(max_num_seqs=200) as worker, gateway(worker) as gate:
        alone = await _asked(gate, _chat("hello", stream=True))
        told = await asyncio.gather(*(_asked(gate, _chat("hello", stream=True)) for _ in range(64)))
        assert {one.status for one in told} == {200}
        assert {_said(one) for one in told} == {_said(alone)}


def _said(response: Response) -> str:
    events = [event.removeprefix(b"data: ") for event in response.body.split(b"\n\n") if event]
    assert events.pop() == b"[DONE]"
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)
