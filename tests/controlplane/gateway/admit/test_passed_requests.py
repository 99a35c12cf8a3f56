"""What goes on to another gateway with a request, and what is refused here; the whole of it: test_control_planes.py."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.passed_requests import OtherControlPlanes, onward, passed_by
from cachefleet_controlplane.pools.source import PoolView
from cachefleet_core.pool.spec import PrefixCachePool
from tests.controlplane.gateway.harness import Front, Known, chat, engine, front, pool
from tests.controlplane.gateway.responses_socket.sockets import connected, create, refused
from tests.controlplane.gateway.tenancies import ACME, CHAT, KEYS, directory
from tests.fakes.engine import FakeEngine


def elsewhere(model: str) -> PrefixCachePool:
    declared = pool(model=model)
    metadata = declared.metadata.model_copy(update={"name": model})
    return declared.model_copy(
        update={"metadata": metadata, "spec": declared.spec.model_copy(update={"control_plane": "b"})}
    )


NAMES = ((b"x-request-id", b"r1"),)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([(b"authorization", b"Bearer k"), (b"x-api-key", b"k")], [("authorization", "Bearer k"), ("x-api-key", "k")]),
        ([(b"prefer", b"if-available"), (b"anthropic-version", b"1")], None),
        ([(b"host", b"a"), (b"content-length", b"3"), (b"content-encoding", b"gzip"), (b"expect", b"x")], []),
        ([(b"connection", b"close, X-Hop"), (b"x-hop", b"1"), (b"te", b"x"), (b"accept-encoding", b"br")], []),
        ([(b"x-request-id", b"mine"), (b"x-cachefleet-passed-by", b"me")], []),
        ([(b"x", "\u00e9".encode()), (b"y", b"\xe9")], [("x", "\u00e9"), ("y", "\u00e9")]),
    ],
    ids=["key", "wishes", "of this connection", "of one hop", "names", "bytes"],
)
def test_the_clients_headers_go_on_but_those_of_one_hop(given: Any, sent: Any) -> None:
    wanted = [(name.decode(), value.decode()) for name, value in given] if sent is None else sent
    own = [("x-request-id", "r1"), ("x-cachefleet-passed-by", "a")]
    assert onward(given, own="a", names=NAMES) == [*wanted, *own]


def test_who_has_passed_a_request_on_is_read() -> None:
    assert passed_by([(b"x-cachefleet-passed-by", b"a")]) == "a"
    assert passed_by([(b"x", b"a")]) == ""


@asynccontextmanager
async def passing(url: str, **options: Any) -> AsyncIterator[Front]:
    """A gateway whose own model is "fake", and that passes requests for "other" on to the gateway at a URL."""
    others = OtherControlPlanes("a", {"b": url})
    async with engine() as worker, front([worker], others=others, **options) as gate:
        gate.fleet.update_pools([PoolView(pool(), gate.endpoints())], (), [PoolView(elsewhere("other"), ())])
        yield gate


@asynccontextmanager
async def both(*, other: Known | None = None, **options: Any) -> AsyncIterator[tuple[Front, FakeEngine]]:
    """That one, and the worker behind the other one, whose tenants ``other`` are."""
    async with (
        engine(model="other", inter_token_seconds=0.02) as worker,
        front([worker], model="other", known=other) as there,
        passing(there.url, **options) as here,
    ):
        yield here, worker


@asynccontextmanager
async def breaking(*parts: bytes) -> AsyncIterator[str]:
    """The URL of a server that answers with these bytes and ends the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_a_compressed_body_goes_on_plain() -> None:
    async with both() as (gate, worker):
        body = gzip.compress(json.dumps(chat("plain words", model="other")).encode())
        status, headers, _ = await gate.post(CHAT, body, content_encoding="gzip")
        assert (status, headers["x-cachefleet-worker"]) == (200, "demo-0")
        assert b"plain words" in worker.requests[-1].body


async def test_it_counts_against_no_limit_here() -> None:
    acme = replace(ACME, requests_at_once=1)
    async with both(known=Known(directory(acme))) as (gate, _):
        key = {"authorization": f"Bearer {KEYS[acme.name]}"}
        long = chat("x", model="other", max_tokens=2000, ignore_eos=True, stream=True)
        async with gate.http.post(gate.url + CHAT, json=long, headers=key) as under_way:
            await under_way.content.readany()
            assert (await gate.post(CHAT, chat("x"), **key))[0] == 200
            assert (await gate.post(CHAT, chat("x", model="other", n=2), **key))[0] == 200
            under_way.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_its_answer_tells_of_the_other_ones_limits_and_no_others(*, stream: bool) -> None:
    here, there = replace(ACME, requests_per_minute=2, tokens_per_minute=10_000), replace(ACME, requests_per_minute=3)
    async with both(known=Known(directory(here)), other=Known(directory(there))) as (gate, _):
        key = {"authorization": f"Bearer {KEYS[ACME.name]}"}
        for left in ("2", "1", "0"):
            body = chat("x", model="other", stream=stream)
            async with gate.http.post(gate.url + CHAT, json=body, headers=key) as answer:
                assert answer.status == 200
                told = [(name.lower(), value) for name, value in answer.headers.items() if "ratelimit" in name.lower()]
            assert [value for name, value in told if name == "x-ratelimit-remaining-requests"] == [left]
            assert sorted(name for name, _ in told) == [
                f"x-ratelimit-{what}-requests" for what in ("limit", "remaining", "reset")
            ]
        status, headers, _ = await gate.post(CHAT, chat("x"), **key)
        assert (status, headers["x-ratelimit-remaining-requests"]) == (200, "1"), "those did not count here"


async def test_one_that_is_refused_here_is_read_for_its_model_within_the_bounds() -> None:
    async with both(known=Known(directory(ACME))) as (gate, worker):
        status, _, _ = await gate.post(CHAT, chat("x", model="other"))
        assert status == 200, "the other gateway asks for no key"
        seen = len(worker.requests)
        for body in (b"{", b"[]", b'{"model": 7}', json.dumps(chat("x")).encode(), b" " * ((1 << 20) + 1)):
            status, _, told = await gate.post(CHAT, body)
            assert (status, json.loads(told)["error"]["code"]) == (401, "invalid_api_key")
        assert (len(worker.requests), gate.gateway.bodies.held_bytes) == (seen, 0)
        async with gate.http.get(f"{gate.url}/v1/models") as answer:
            assert answer.status == 401


async def test_a_message_on_a_websocket_is_refused() -> None:
    async with both() as (gate, _), connected(gate) as socket:
        assert await refused(socket, create(model="other")) == (421, "model", "misdirected_request")


async def test_an_answer_that_breaks_off_ends_with_an_error() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'
    chunk = b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event)
    async with breaking(head.replace(b"\r\n\r\n", b"\r\n" + chunk)) as url, passing(url) as gate:
        status, _, body = await gate.post(CHAT, chat("x", model="other", stream=True))
        assert status == 200
        assert body.startswith(event)
        assert body.endswith(b"data: [DONE]\n\n")
        assert b"The answer of control plane `b` broke off." in body
        assert not gate.records


async def test_no_answer_at_all_is_told_with_when_to_try_again() -> None:
    async with breaking() as url, passing(url) as gate:
        status, headers, body = await gate.post(CHAT, chat("x", model="other"))
        assert (status, headers["retry-after"]) == (503, "5")
        assert json.loads(body)["error"]["message"].startswith("Control plane `b`, which serves model `other`, did not")


async def test_without_others_it_is_told_where_the_model_is() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.fleet.update_pools([PoolView(pool(), gate.endpoints())], (), [PoolView(elsewhere("other"), ())])
        status, _, body = await gate.post(CHAT, chat("x", model="other"))
        error = json.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (421, "misdirected_request", "model")
        assert error["message"] == "Model `other` is served by control plane `b`: ask its gateway."
