"""A worker behind something that compresses whatever is asked: read all the same, or refused, and never mislabelled."""

from __future__ import annotations

import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.send import answer_budget, client
from cachefleet_controlplane.wire.content_encoding import PIECE_BYTES, Inflater, UndecodableError
from tests.controlplane.gateway.harness import MODEL, Front, engine, events, front
from tests.controlplane.gateway.retry.test_failover import Scripted, serving
from tests.controlplane.waiting import until

BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15, "deflate, raw": -15}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9}),
    ("/v1/completions", {"prompt": "hello there", "max_tokens": 9}),
    ("/v1/responses", {"input": "hello there", "max_output_tokens": 9}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 9}),
]


def compressor(coding: str) -> Any:
    return zlib.compressobj(6, zlib.DEFLATED, BITS[coding])


class Compressing(Scripted):
    """Forwards to a worker, and compresses every answer of it, flushed piece by piece as a proxy does with streams."""

    def __init__(self, worker: str, coding: str, *, label: str | None = None) -> None:
        super().__init__()
        self._worker = worker
        self._coding = coding
        self._label = coding.partition(",")[0] if label is None else label

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body, headers = (
            await request.read(),
            {k: v for k, v in request.headers.items() if k.lower() != "content-length"},
        )
        async with (
            aiohttp.ClientSession() as http,
            http.request(request.method, self._worker + request.path, data=body, headers=headers) as told,
        ):
            labelled = {"content-type": told.headers["content-type"], "content-encoding": self._label}
            out = web.StreamResponse(status=told.status, headers=labelled)
            await out.prepare(request)
            packed = compressor(self._coding)
            async for piece in told.content.iter_any():
                await out.write(packed.compress(piece) + packed.flush(zlib.Z_SYNC_FLUSH))
            await out.write(packed.flush())
            return out


@asynccontextmanager
async def behind(coding: str, **options: Any) -> AsyncIterator[Front]:
    async with (
        engine() as worker,
        serving(Compressing(worker.url, coding, **options)) as proxy,
        front([proxy], max_attempts=2) as gate,
    ):
        yield gate


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "deflate, raw"])
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_what_is_compressed_is_read_and_passed_on_plain(
    coding: str, path: str, body: dict[str, Any], *, stream: bool
) -> None:
    async with behind(coding) as gate:
        for number, accepted in enumerate(("gzip", "identity"), 1):
            asked = {"model": MODEL, "stream": stream} | body
            status, headers, answer = await gate.post(path, asked, accept_encoding=accepted)
            assert (status, "content-encoding" in headers) == (200, False), answer
            assert b'token_ids":[' not in answer, "what only the gateway asked for"
            told = answer if stream else json.dumps(json.loads(answer)).encode()
            assert b"usage" in told or stream
            await until(lambda: len(gate.records) == number)  # noqa: B023 - awaited here
            assert (gate.records[-1].completion_tokens, gate.records[-1].cached_tokens) == (6, 0) or accepted != "gzip"
        if stream and "responses" not in path and "messages" not in path:
            assert events(answer)[-1] == b"[DONE]"
            assert not any(b'"usage"' in event for event in events(answer))


@pytest.mark.parametrize(
    ("label", "coding"), [("br", "gzip"), ("zstd", "gzip"), ("gzip, gzip", "gzip"), ("gzip", "deflate")]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_cannot_be_decoded_is_a_502_that_says_what_to_do(label: str, coding: str, *, stream: bool) -> None:
    async with behind(coding, label=label) as gate:
        for number, (path, body) in enumerate(BODIES, 1):
            status, headers, answer = await gate.post(path, {"model": MODEL, "stream": stream} | body)
            assert (status, "content-encoding" in headers) == (502, False)
            assert "turn compression off" in json.loads(answer)["error"]["message"]
            await until(lambda: len(gate.records) == number)  # noqa: B023 - awaited here
            assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["undecodable"]


async def test_an_error_that_is_compressed_is_told() -> None:
    async with behind("gzip") as gate:
        status, _, answer = await gate.chat("x", temperature=-1)
        assert (status, "temperature" in json.loads(answer)["error"]["message"]) == (400, True)


class Bomb(Scripted):
    """A worker whose small answer becomes a large one."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        packed = compressor("gzip")
        self._body = packed.compress(b"x" * size) + packed.flush()
        self._headers = {"content-type": kind, "content-encoding": "gzip"}

    async def handle(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self._body, headers=self._headers)


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_what_it_becomes_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_budget, "MAX_ANSWER_BYTES", 1 << 20)
    monkeypatch.setattr(client, "MAX_EVENT_BYTES", 1 << 20)
    async with serving(Bomb(8 << 20, kind)) as worker, front([worker]) as gate:
        status, _, _ = await gate.chat("x", stream=kind != "application/json")
        await until(lambda: len(gate.records) == 1)
        assert (status, gate.records[-1].attempts[-1].outcome) == (502, "oversized")


@given(st.binary(max_size=3 * PIECE_BYTES), st.sampled_from(sorted(BITS)), st.integers(1, 5000), st.booleans())
def test_pieces_make_the_body_however_they_are_cut(body: bytes, coding: str, size: int, twice: bool) -> None:  # noqa: FBT001
    packed = compressor(coding)
    sent = packed.compress(body) + packed.flush()
    if twice and "gzip" in coding:
        sent, body = sent * 2, body * 2
    inflater, read = Inflater([coding.partition(",")[0].encode()]), b""
    for start in range(0, len(sent), size):
        inflater.feed(sent[start : start + size])
        while piece := inflater.take():
            assert len(piece) <= PIECE_BYTES
            read += piece
    assert (read, inflater.whole) == (body, True)


@pytest.mark.parametrize("coding", sorted(BITS))
def test_a_body_may_come_byte_by_byte(coding: str) -> None:
    packed = compressor(coding)
    inflater, read = Inflater([coding.partition(",")[0].encode()]), b""
    for byte in packed.compress(b"hello there") + packed.flush():
        inflater.feed(bytes([byte]))
        assert not inflater.whole or read
        while piece := inflater.take():
            read += piece
    assert (read, inflater.whole) == (b"hello there", True)


@pytest.mark.parametrize("break_it", [lambda sent: sent[:-1], lambda sent: sent[: len(sent) // 2]])
def test_a_cut_body_is_not_whole(break_it: Callable[[bytes], bytes]) -> None:
    packed = compressor("gzip")
    inflater = Inflater([b"gzip"])
    inflater.feed(break_it(packed.compress(b"hello there " * 50) + packed.flush()))
    while inflater.take():
        pass
    assert not inflater.whole


@pytest.mark.parametrize("coding", [b"gzip", b"deflate"])
def test_what_is_no_compressed_body_is_refused(coding: bytes) -> None:
    inflater = Inflater([coding])
    inflater.feed(b'{"plain": true}')
    with pytest.raises(UndecodableError):
        inflater.take()
    for codings in ([], [b"br"], [b"gzip", b"gzip"]):
        with pytest.raises(UndecodableError):
            Inflater(codings)
