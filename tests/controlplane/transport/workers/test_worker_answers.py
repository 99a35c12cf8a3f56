"""Answers of workers, sound and unsound, as attempts see them."""

from __future__ import annotations

import gzip

import pytest

from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_runtime.sse import EventSplitter
from tests.controlplane.transport.workers.asked import BODY, HEADERS, PATH, Came, answered, came, upstream_of
from tests.controlplane.transport.workers.fake_raw_worker import (
    CHUNKED,
    JSON,
    STREAM,
    End,
    Step,
    chunk,
    fake_raw_worker,
    head,
    streamed,
    whole,
)
from tests.controlplane.waiting import until

TYPE = (b"content-type", b"application/json")
EVENTS = (b'data: {"a":1}\n\n', b'event: x\ndata: {"b":"\xc3\xa4"}\n\n', b"data: [DONE]\n\n")
MIB = 1 << 20


def _whole(body: bytes, *headers: tuple[bytes, bytes], status: int = 200) -> Came:
    return Came(Outcome.ANSWERED, status, (TYPE, *headers), body)


def _streamed(*events: bytes, end: Outcome = Outcome.FINISHED) -> Came:
    return Came(Outcome.FIRST_EVENT, 200, ((b"content-type", b"text/event-stream"),), events=events, end=end)


async def test_what_a_worker_is_sent() -> None:
    async with fake_raw_worker([whole()]) as worker, upstream_of() as upstream:
        await came(upstream, worker)
        await came(upstream, worker, b"")
    line, *fields = worker.requests[0].split(b"\r\n\r\n")[0].split(b"\r\n")
    assert line == b"POST /v1/chat/completions HTTP/1.1"
    told = [(name.lower(), value) for name, _, value in (one.partition(b": ") for one in fields)]
    expected = [(name.encode(), value.encode()) for name, value in HEADERS]
    assert [field for field in told if field in expected] == expected
    rest = {name: value for name, value in told if (name, value) not in expected}
    host = worker.url.removeprefix("http://").encode()
    assert rest == {b"host": host, b"content-length": b"%d" % len(BODY)} | _harmless(rest)
    assert worker.requests[0].endswith(b"\r\n\r\n" + BODY)
    assert b"content-length: 0" in worker.requests[1].lower()


def _harmless(fields: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Fields that a client may add."""
    return {name: value for name, value in fields.items() if name in {b"accept", b"accept-encoding"}}


@pytest.mark.parametrize("size", [1, 65_536, MIB - 1, MIB, 3 * MIB])
async def test_a_body_of_any_size_is_sent_whole(size: int) -> None:
    async with fake_raw_worker([whole()]) as worker, upstream_of() as upstream:
        assert await came(upstream, worker, b"x" * size) == _whole(b"{}")
    assert len(worker.requests[0].split(b"\r\n\r\n", 1)[1]) == size


SOUND: dict[str, tuple[list[Step], Came | None]] = {
    "length": ([whole(b'{"a":1}')], _whole(b'{"a":1}')),
    "empty": ([whole(b"")], _whole(b"")),
    "chunked": ([head(JSON, CHUNKED), chunk(b"{"), chunk(b"}"), chunk(b"")], _whole(b"{}")),
    "extensions and trailer": ([head(JSON, CHUNKED), b"2;a=b\r\n{}\r\n0;c\r\nx-end: 1\r\n\r\n"], _whole(b"{}")),
    "until the end": ([head(JSON), b"{}", End.CLOSE], _whole(b"{}")),
    "old": ([head(JSON, version=b"1.0"), b"{}", End.CLOSE], _whole(b"{}")),
    "old with a length": ([head(JSON, b"content-length: 2", version=b"1.0"), b"{}", End.CLOSE], _whole(b"{}")),
    "no reason": ([head(JSON, b"content-length: 2", status=b"200 "), b"{}"], _whole(b"{}")),
    "not found": ([whole(b"{}", status=b"404 Not Found")], _whole(b"{}", status=404)),
    "not implemented": ([whole(b"{}", status=b"501 No")], _whole(b"{}", status=501)),
    "an odd status": ([whole(b"{}", status=b"299 Odd")], _whole(b"{}", status=299)),
    "100 first": ([head(status=b"100 Continue"), whole()], _whole(b"{}")),
    "103 first, twice": ([head(b"link: x", status=b"103 Early Hints") * 2, whole()], _whole(b"{}")),
    "fields": (
        [whole(b"{}", b"x-a: 1", b"X-B:  two words", b"x-a: 3", b"x-empty:")],
        _whole(b"{}", (b"x-a", b"1"), (b"x-b", b"two words"), (b"x-a", b"3"), (b"x-empty", b"")),
    ),
    "bytes in a field": ([whole(b"{}", b"x-a: \xc3\xa4\xe4")], _whole(b"{}", (b"x-a", b"\xc3\xa4\xe4"))),
    "fields of one hop": ([whole(b"{}", b"connection: x-a", b"x-a: 1", b"set-cookie: a=b")], _whole(b"{}")),
    "compressed": (
        [whole(gzip.compress(b'{"a":1}'), b"content-encoding: gzip")],
        _whole(b'{"a":1}'),
    ),
    "long": ([whole(b"x" * 3 * MIB)], _whole(b"x" * 3 * MIB)),
    "a redirect": (
        [whole(b"{}", b"location: http://elsewhere/", status=b"307 Elsewhere")],
        _whole(b"{}", status=307),
    ),
    "a stream": ([streamed(*EVENTS)], _streamed(*EVENTS)),
    "a stream of a length": ([head(STREAM, b"content-length: 16"), b"data: 1\n\n", b"data: 2"], None),
    "a stream until the end": ([head(STREAM), *EVENTS, End.CLOSE], _streamed(*EVENTS)),
    "a stream with a rest": ([streamed(EVENTS[0], b"data: half")], _streamed(EVENTS[0], b"data: half")),
    "a stream with comments": ([streamed(b": hi\n\n", EVENTS[0])], _streamed(b": hi\n\n", EVENTS[0])),
    "a stream with parameters": (
        [head(b"content-type: text/event-stream; charset=utf-8", CHUNKED), *map(chunk, (*EVENTS, b""))],
        Came(
            Outcome.FIRST_EVENT,
            200,
            ((b"content-type", b"text/event-stream; charset=utf-8"),),
            events=EVENTS,
            end=Outcome.FINISHED,
        ),
    ),
}


@pytest.mark.parametrize("name", SOUND)
async def test_a_sound_answer(name: str) -> None:
    steps, expected = SOUND[name]
    assert await answered(*steps) == (expected or _streamed(b"data: 1\n\n", b"data: 2"))


UNSOUND: dict[str, list[Step]] = {
    "nothing": [End.CLOSE],
    "a reset": [End.RESET],
    "half a head": [b"HTTP/1.1 200 OK\r\ncontent-le", End.CLOSE],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.0\r\n\r\n", End.CLOSE],
    "a status below": [whole(status=b"099 What")],
    "a status above": [whole(status=b"600 What")],
    "a long status": [whole(status=b"2000 What")],
    "a status that is none": [whole(status=b"abc What")],
    "switching protocols": [head(b"connection: upgrade", b"upgrade: x", status=b"101 Switching"), End.CLOSE],
    "a body too short": [head(JSON, b"content-length: 10"), b"{}", End.CLOSE],
    "chunks without end": [head(JSON, CHUNKED), chunk(b"{}"), End.CLOSE],
    "half a chunk": [head(JSON, CHUNKED), b"5\r\n{}", End.CLOSE],
    "a chunk of no size": [head(JSON, CHUNKED), b"zz\r\n{}\r\n0\r\n\r\n"],
    "an endless field": [head(JSON)[:-2] + b"x: " + b"y" * 2 * MIB, End.SILENCE],
    "endless fields": [head(JSON)[:-2] + b"a: b\r\n" * 300_000, End.SILENCE],
    "an endless name": [head(JSON)[:-2] + b"y" * 2 * MIB, End.SILENCE],
    "an endless reason": [b"HTTP/1.1 200 " + b"y" * 2 * MIB, End.SILENCE],
    "two lengths": [head(JSON, b"content-length: 2", b"content-length: 3"), b"{}x", End.CLOSE],
    "a length that is none": [head(JSON, b"content-length: many"), b"{}", End.CLOSE],
    "NUL in a field": [head(JSON, b"x: a\0b", b"content-length: 2"), b"{}"],
    "reset within the body": [head(JSON, b"content-length: 10"), b"{}", 0.02, End.RESET],
    "a stream of nothing": [streamed()],
    "a stream that breaks before its first event": [head(STREAM, CHUNKED), chunk(b"data: "), End.CLOSE],
}


@pytest.mark.parametrize("name", UNSOUND)
async def test_an_unsound_answer_is_lost(name: str) -> None:
    assert await answered(*UNSOUND[name]) == Came(Outcome.LOST)


@pytest.mark.parametrize(
    ("steps", "outcome", "status"),
    [
        ([whole(status=b"500 Bad")], Outcome.SERVER_ERROR, 500),
        ([whole(status=b"503 Bad")], Outcome.SERVER_ERROR, 503),
        ([whole(status=b"401 No")], Outcome.KEY_REFUSED, 401),
        ([whole(status=b"403 No")], Outcome.KEY_REFUSED, 403),
        ([streamed(b'data: {"error":{"message":"x","code":500}}\n\n')], Outcome.SERVER_ERROR, 200),
    ],
)
async def test_an_answer_that_is_a_failure(steps: list[bytes], outcome: Outcome, status: int) -> None:
    told = await answered(*steps)
    assert (told.outcome, told.status) == (outcome, status)


async def test_what_is_not_there_is_unreachable() -> None:
    async with fake_raw_worker([whole()]) as worker:
        pass
    async with upstream_of() as upstream:
        assert await came(upstream, worker) == Came(Outcome.UNREACHABLE)
        for url in ("http://127.0.0.1:1", "http://no-such-host.invalid:80", "http://"):
            opened = await upstream.open(url, PATH, BODY, headers=HEADERS)
            assert opened.outcome is Outcome.UNREACHABLE, url


@pytest.mark.parametrize(
    "steps", [[End.SILENCE], [b"HTTP/1.1 200 OK\r\n", End.SILENCE], [head(JSON, CHUNKED), chunk(b"{"), End.SILENCE]]
)
async def test_a_worker_that_says_nothing_more_is_silent(steps: list[bytes | End]) -> None:
    async with fake_raw_worker(steps) as worker, upstream_of(idle_seconds=0.2) as upstream:
        assert await came(upstream, worker) == Came(Outcome.SILENT)
        await until(lambda: worker.left == 1)


async def test_a_stream_that_says_nothing_more_is_silent() -> None:
    steps: list[Step] = [head(STREAM, CHUNKED), chunk(EVENTS[0]), End.SILENCE]
    assert await answered(*steps, idle_seconds=0.2) == _streamed(EVENTS[0], end=Outcome.SILENT)


async def test_a_slow_answer_is_no_silent_one() -> None:
    drip: list[Step] = [step for byte in whole(b'{"a":1}') for step in (bytes([byte]), 0.003)]
    assert await answered(*drip, idle_seconds=0.3) == _whole(b'{"a":1}')


async def test_a_worker_that_answers_before_the_body_is_in() -> None:
    async with fake_raw_worker([whole(status=b"400 Bad")], early=True) as worker, upstream_of() as upstream:
        assert (await came(upstream, worker, b"x" * 4 * MIB)).status == 400


async def test_an_event_that_is_too_long_is_oversized() -> None:
    endless: list[Step] = [head(STREAM, CHUNKED), chunk(EVENTS[0]), *[chunk(b"data: " + b"x" * MIB)] * 9, End.SILENCE]
    assert await answered(*endless) == _streamed(EVENTS[0], end=Outcome.OVERSIZED)
    first: list[Step] = [head(STREAM, CHUNKED), *[chunk(b"x" * MIB)] * 9, End.SILENCE]
    assert await answered(*first) == Came(Outcome.OVERSIZED)


STREAMS = {
    "LF": b'data: {"a":1}\n\nevent: x\ndata: \xc3\xa4\n\n: c\n\ndata: [DONE]\n\n',
    "CRLF": b'data: {"a":1}\r\n\r\nevent: x\r\ndata: \xc3\xa4\r\n\r\n: c\r\n\r\ndata: [DONE]\r\n\r\n',
    "CR": b'data: {"a":1}\r\revent: x\rdata: \xc3\xa4\r\r: c\r\rdata: [DONE]\r\r',
    "mixed": b"data: 1\n\r\n\r\ndata: 2\r\n\n\n\ndata: 3\r\r\n\r\n\ndata: [DONE]\n\n",
}


def _cut(stream: bytes) -> tuple[bytes, ...]:
    splitter = EventSplitter(1 << 20)
    return (*splitter.feed(stream), *filter(None, [splitter.rest]))


@pytest.mark.parametrize("ends", STREAMS)
async def test_a_stream_cut_at_every_byte_is_the_same_events(ends: str) -> None:
    stream = STREAMS[ends]
    begin, end = head(STREAM, CHUNKED), chunk(b"")
    answers = [[begin, chunk(stream[:at]), chunk(stream[at:]), end] for at in range(1, len(stream))]
    async with fake_raw_worker(*answers) as worker, upstream_of() as upstream:
        for _ in answers:
            assert await came(upstream, worker) == _streamed(*_cut(stream))
    assert worker.connections == 1


@pytest.mark.parametrize("ends", STREAMS)
async def test_a_stream_byte_by_byte_is_the_same_events(ends: str) -> None:
    pieces = [chunk(bytes([byte])) for byte in STREAMS[ends]]
    assert await answered(head(STREAM, CHUNKED), *pieces, chunk(b"")) == _streamed(*_cut(STREAMS[ends]))
