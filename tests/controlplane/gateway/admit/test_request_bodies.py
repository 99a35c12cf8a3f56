"""Bodies that cost too much are refused before they are decoded; long ones are decoded off the event loop."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.request_bodies import THREAD_BYTES, GatewayBounds, RequestBodies
from tests.controlplane.gateway.harness import MODEL, chat, engine, front
from tests.controlplane.waiting import until

MIB = 1024 * 1024
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/route")
BOUNDS = GatewayBounds(body_bytes=8 * MIB, body_seconds=30, requests=10)


def _body(**members: bytes) -> bytes:
    whole = {"model": json.dumps(MODEL).encode(), **members}
    return b"{" + b",".join(b'"%s":%s' % (name.encode(), value) for name, value in whole.items()) + b"}"


def _listed(item: bytes, number: int) -> bytes:
    return b"[" + b",".join([item] * number) + b"]"


PLAIN = json.dumps(chat("x")).encode()

COSTLY = {
    "objects": _body(messages=_listed(b"{}", 100_000), input=b"[]", max_tokens=b"1"),
    "members": b"{" + b",".join(b'"%d":1' % index for index in range(300_000)) + b"}",
    "items": _body(messages=_listed(b"1", 2_200_000)),
    "depth": _body(messages=b"[" * 10_000 + b"]" * 10_000),
    "objects in each other": _body(messages=b'[{"content":' * 200 + b"1" + b"}]" * 200),
    "xargs": _body(vllm_xargs=b"{" + b",".join(b'"%d":1' % index for index in range(300_000)) + b"}"),
    "the same member": _body(messages=b"{" + b",".join([b'"a":"b"'] * 200_000) + b"}"),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_a_costly_body_is_refused_by_every_api(name: str) -> None:
    async with engine() as worker, front([worker], bounds=BOUNDS) as gate:
        for path in PATHS:
            status, _, told = await gate.post(path, COSTLY[name])
            assert (path, status) == (path, 400)
            assert b"more than" in told
        assert not worker.requests


async def test_a_long_body_is_decoded_off_the_loop() -> None:
    served = threading.Event()

    def parse(body: bytes) -> str:
        assert served.wait(30)  # by the loop, meanwhile
        return str(json.loads(body))

    bodies = RequestBodies(BOUNDS)
    long = b'"' + b"a" * THREAD_BYTES + b'"'
    with bodies.share("a") as share:
        asyncio.get_running_loop().call_later(0.01, served.set)
        scope = {"path": "/v1/completions", "headers": []}
        assert len(await bodies.read(scope, _received(long), share, parse)) == THREAD_BYTES


def _received(body: bytes) -> Any:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    return receive


@asynccontextmanager
async def _half_sent(url: str, size: int) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (size + 10))
    writer.write(b" " * size)
    await writer.drain()
    yield reader
    writer.close()


async def test_bodies_that_are_held_leave_room_and_are_given_back() -> None:
    bounds = GatewayBounds(body_bytes=MIB, body_seconds=30, requests=10, buffered_bytes=2 * MIB)
    async with engine() as worker, front([worker], bounds=bounds) as gate:
        held = gate.gateway.bodies
        async with _half_sent(gate.url, MIB - 100):
            await until(lambda: held.held_bytes >= MIB - 100)
            status, headers, told = await gate.chat("x" * 2000)
            assert (status, headers["retry-after"]) == (503, "2")
            assert b"bytes of request bodies" in told
        await until(lambda: held.held_bytes == 0)
        assert (await gate.chat("x" * 2000))[0] == 200
        assert held.held_bytes == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP", "identity"])
async def test_a_compressed_body_is_served_and_sent_on_plain(coding: str) -> None:
    coded = {"gzip": gzip.compress(PLAIN), "deflate": zlib.compress(PLAIN), "identity": PLAIN}
    body = coded[coding.lower()]
    async with engine() as worker, front([worker]) as gate:
        status, _, _ = await gate.post("/v1/chat/completions", body, content_encoding=coding)
        assert status == 200
        assert json.loads(worker.requests[-1].body)["model"] == MODEL
        assert "content-encoding" not in worker.requests[-1].headers


BOMB = gzip.compress(b" " * (4 * MIB))
WRONG = {
    "unknown": ("br", PLAIN, 415),
    "two": ("gzip, gzip", gzip.compress(gzip.compress(PLAIN)), 415),
    "not gzip": ("gzip", PLAIN, 400),
    "cut": ("gzip", gzip.compress(PLAIN)[:-4], 400),
    "more": ("gzip", gzip.compress(PLAIN) + b"more", 400),
    "bomb": ("gzip", BOMB, 413),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_decoded_within_the_bound_is_refused(name: str) -> None:
    coding, body, status = WRONG[name]
    async with engine() as worker, front([worker]) as gate:
        got, headers, _ = await gate.post("/v1/chat/completions", body, content_encoding=coding)
        assert got == status
        assert ("accept-encoding" in headers) == (status == 415)
        assert not worker.requests
