"""Connections to workers: which are kept, which are cut, and answers that break at each byte."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from cachefleet_controlplane.gateway.send.outcome import Outcome
from tests.controlplane.transport.workers.asked import BODY, HEADERS, PATH, Came, came, opened, rest, upstream_of
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

EVENT = b"data: 1\n\n"
WHOLE = Came(Outcome.ANSWERED, 200, ((b"content-type", b"application/json"),), b"{}")
CROWD = 300
UNASKED = whole(b'{"unasked":1}', status=b"500 Bad")


@pytest.mark.parametrize("answer", [whole(), head(JSON, CHUNKED) + chunk(b"{}") + chunk(b""), streamed(EVENT)])
async def test_a_connection_whose_answer_is_whole_is_used_again(answer: bytes) -> None:
    async with fake_raw_worker([answer]) as worker, upstream_of() as upstream:
        for _ in range(10):
            await came(upstream, worker)
        assert worker.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        [whole(b"{}", b"connection: close")],
        [head(JSON, b"content-length: 2", version=b"1.0"), b"{}"],
        [head(JSON), b"{}", End.CLOSE],
    ],
)
async def test_a_connection_that_ends_is_not_used_again(answer: list[Step]) -> None:
    async with fake_raw_worker(answer) as worker, upstream_of() as upstream:
        for number in range(1, 6):
            assert await came(upstream, worker) == WHOLE
            assert worker.connections == number
            await until(lambda: not worker.open)


@pytest.mark.parametrize("unasked", [UNASKED, b"HTTP/1.1 ", b"\r\n\r\n", b"nonsense", whole() + whole()])
async def test_what_a_worker_says_unasked_answers_nothing(unasked: bytes) -> None:
    async with fake_raw_worker([whole()]) as worker, upstream_of() as upstream:
        worker.idle_bytes = unasked
        for number in range(1, 4):
            worker.idle.clear()
            assert await came(upstream, worker) == WHOLE
            assert worker.connections == number
            await worker.idle.wait()
            await asyncio.sleep(0.02)  # it arrives


@pytest.mark.parametrize("more", [UNASKED, b"nonsense"])
async def test_what_comes_right_behind_an_answer_answers_nothing(more: bytes) -> None:
    async with fake_raw_worker([whole() + more]) as worker, upstream_of() as upstream:
        for _ in range(5):
            assert await came(upstream, worker) in (WHOLE, Came(Outcome.LOST))


async def test_a_kept_connection_that_the_worker_ends_is_no_failure() -> None:
    async with fake_raw_worker([whole(), End.CLOSE]) as worker, upstream_of() as upstream:
        for _ in range(5):
            assert await came(upstream, worker) == WHOLE
            await until(lambda: not worker.open)
            await asyncio.sleep(0.01)  # its end arrives


async def test_a_request_on_a_kept_connection_that_breaks_is_lost() -> None:
    async with fake_raw_worker([whole()], [End.RESET], [whole()]) as worker, upstream_of() as upstream:
        assert await came(upstream, worker) == WHOLE
        assert await came(upstream, worker) == Came(Outcome.LOST)
        assert await came(upstream, worker) == WHOLE
        assert worker.by_connection == [0, 0, 1]


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
async def test_a_whole_answer_that_breaks_at_any_byte_is_lost(end: End) -> None:
    answer = whole(b'{"a":1}')
    cuts: list[list[Step]] = [[answer[:at], end] for at in range(len(answer))]
    async with fake_raw_worker(*cuts, [answer]) as worker, upstream_of() as upstream:
        for _ in cuts:
            assert await came(upstream, worker) == Came(Outcome.LOST)
        assert (await came(upstream, worker)).body == b'{"a":1}'


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
async def test_a_stream_that_breaks_at_any_byte_tells_its_whole_events(end: End) -> None:
    begin = head(STREAM, CHUNKED) + chunk(EVENT)
    answer = begin + chunk(b"data: 2\n\n") + chunk(b"data: 3\n\n") + chunk(b"")
    settle, places = 0.005, range(len(begin), len(answer))
    cuts: list[list[Step]] = [[begin, settle, answer[len(begin) : at], settle, end] for at in places]
    async with fake_raw_worker(*cuts) as worker, upstream_of() as upstream:
        for at in places:
            told = await came(upstream, worker)
            assert (told.outcome, told.end) == (Outcome.FIRST_EVENT, Outcome.LOST)
            whole_ones = [event for event in (EVENT, b"data: 2\n\n", b"data: 3\n\n") if event in answer[:at]]
            assert list(told.events) == whole_ones


async def test_after_done_a_break_is_no_failure() -> None:
    steps: list[Step] = [head(STREAM, CHUNKED), chunk(EVENT), chunk(b"data: [DONE]\n\n"), 0.02, End.RESET]
    async with fake_raw_worker(steps) as worker, upstream_of() as upstream:
        assert (await came(upstream, worker)).end is Outcome.FINISHED


async def test_a_stream_that_is_left_is_cut_at_once() -> None:
    steps: list[Step] = [head(STREAM, CHUNKED), chunk(EVENT), End.SILENCE]
    async with fake_raw_worker(steps) as worker, upstream_of() as upstream:
        begun = await opened(upstream, worker)
        assert begun.stream is not None
        begun.stream.close()
        await until(lambda: worker.left == 1)
        again = await opened(upstream, worker)
        assert worker.connections == 2
        assert again.stream is not None
        again.stream.close()


@pytest.mark.parametrize("said", [[], [b"HTTP"], [head(JSON, CHUNKED), chunk(b"{")]])
async def test_who_does_not_wait_for_an_answer_cuts_it(said: list[Step]) -> None:
    async with fake_raw_worker([*said, End.SILENCE]) as worker, upstream_of() as upstream:
        asking = asyncio.create_task(came(upstream, worker))
        await until(lambda: bool(worker.requests))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: worker.left == 1)


async def test_who_waits_only_so_long_cuts_it() -> None:
    async with fake_raw_worker([End.SILENCE]) as worker, upstream_of() as upstream:
        told = await upstream.ask(worker.url, PATH, BODY, headers=HEADERS, seconds=0.2)
        assert told.outcome is Outcome.SILENT
        await until(lambda: worker.left == 1)


async def test_who_does_not_wait_for_a_stream_cuts_it() -> None:
    steps: list[Step] = [head(STREAM, CHUNKED), chunk(EVENT), End.SILENCE]
    async with fake_raw_worker(steps) as worker, upstream_of() as upstream:
        begun = await opened(upstream, worker)
        reading = asyncio.create_task(rest(begun))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert begun.stream is not None
        begun.stream.close()
        await until(lambda: worker.left == 1)


async def test_a_worker_that_takes_no_connection_is_unreachable() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for one in waiting:
            one.setblocking(False)  # noqa: FBT003 - its only parameter
            one.connect_ex(full.getsockname())
        await asyncio.sleep(0.02)
        async with upstream_of(connect_seconds=0.2) as upstream:
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            told = await upstream.open(url, PATH, BODY, headers=HEADERS)
        for one in waiting:
            one.close()
    assert told.outcome is Outcome.UNREACHABLE


async def test_many_requests_at_once_have_each_their_own_answer() -> None:
    go = asyncio.Event()
    answers: list[list[Step]] = [[go, whole(b"%d" % number)] for number in range(CROWD)]
    async with fake_raw_worker(*answers) as worker, upstream_of() as upstream:
        asking = [asyncio.create_task(came(upstream, worker, b"%d" % number)) for number in range(CROWD)]
        await until(lambda: len(worker.requests) == CROWD)
        go.set()
        told = [(await one).body for one in asking]
        sent = [int(request.rsplit(b"\r\n\r\n", 1)[1]) for request in worker.requests]
        assert [told[number] for number in sent] == [b"%d" % index for index in range(CROWD)]
        assert worker.connections == CROWD


async def test_a_worker_that_floods_takes_turns_with_others() -> None:
    flood: list[Step] = [head(STREAM, CHUNKED), *[chunk(EVENT * 1000)] * 20_000, End.SILENCE]
    async with (
        fake_raw_worker(flood) as flooding,
        fake_raw_worker([whole()]) as other,
        upstream_of() as upstream,
    ):
        begun = await opened(upstream, flooding)
        reading = asyncio.create_task(rest(begun))
        for _ in range(50):
            assert await came(upstream, other) == WHOLE
        assert not reading.done()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert begun.stream is not None
        begun.stream.close()
        await until(lambda: flooding.left == 1)


async def test_a_stream_that_nobody_reads_is_not_held_whole() -> None:
    piece = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
    sent = 0

    async def floods(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head(STREAM, CHUNKED))
        try:
            while True:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(floods, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with upstream_of() as upstream:
        begun = await upstream.open(url, PATH, BODY, headers=HEADERS)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 32 << 20  # what the sockets' own buffers hold
        assert begun.stream is not None
        begun.stream.close()
    server.close()


def _probed_after(port: int) -> list[int]:
    """Seconds until the kernel probes each silent connection to this local port (``/proc/net/tcp``: timer 2)."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        kind, _, left = fields[5].partition(":")
        if int(fields[2].rpartition(":")[2], 16) == port and kind == "02":
            found.append(int(left, 16) // os.sysconf("SC_CLK_TCK"))
    return found


async def test_a_connection_on_which_nothing_comes_is_probed() -> None:
    """So it breaks where its host is gone, which sends no reset."""
    async with fake_raw_worker([head(STREAM, CHUNKED), End.SILENCE]) as worker, upstream_of() as upstream:
        asking = asyncio.create_task(came(upstream, worker))
        port = int(worker.url.rpartition(":")[2])
        await until(lambda: bool(_probed_after(port)))
        assert max(_probed_after(port)) <= 10
        asking.cancel()
        await asyncio.wait({asking})


async def test_an_answer_that_is_cut_breaks_off_for_whoever_reads_it() -> None:
    steps: list[Step] = [head(STREAM, CHUNKED), chunk(EVENT), End.SILENCE]
    async with fake_raw_worker(steps) as worker, upstream_of() as upstream:
        begun = await opened(upstream, worker)
        reading = asyncio.create_task(rest(begun))
        await asyncio.sleep(0.02)  # it reads
        assert begun.stream is not None
        begun.stream.cut()
        assert (await reading).end is Outcome.LOST
        begun.stream.close()
        await until(lambda: not worker.open)
