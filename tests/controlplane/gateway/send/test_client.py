"""The client of workers: what it sends, how it reads answers, what failures are."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from cachefleet_controlplane.gateway.send import answer_budget
from cachefleet_controlplane.gateway.send.answer_budget import COUNTED_BYTES, AnswerBudget
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AnswerStream, AttemptResult
from cachefleet_controlplane.transport.completions import Completions
from tests.controlplane.leftovers import collector_off
from tests.controlplane.waiting import until

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
HEADERS = [("content-type", "application/json"), ("x-name", "wörd")]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST, LAST = chunk(b'data: {"a":1}\n\n'), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


@dataclass
class Connection:
    """One that a client made to a Worker."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    heads: list[bytes] = field(default_factory=list)

    async def request(self) -> tuple[bytes, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        self.heads.append(head)
        return head, await self.reader.readexactly(int(length.partition(b":")[2]))

    async def cut(self) -> None:
        """Returns once the client has cut it."""
        with suppress(ConnectionError):
            assert await self.reader.read(1) == b""


Serve = Callable[[Connection], Awaitable[None]]


@dataclass
class Worker:
    url: str
    connections: list[Connection]


@asynccontextmanager
async def worker(serve: Serve) -> AsyncIterator[Worker]:
    made: list[Connection] = []
    serving: list[asyncio.Task[None]] = []

    async def answer(connection: Connection) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(connection)
        connection.writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(Connection(reader, writer))
        serving.append(asyncio.create_task(answer(made[-1])))

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield Worker(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", made)
        for connection in made:
            connection.writer.close()
        await asyncio.gather(*serving)


def always(answer: bytes) -> Serve:
    async def serve(connection: Connection) -> None:
        while True:
            await connection.request()
            connection.writer.write(answer)

    return serve


def once(answer: bytes, *, closes: bool = False) -> Serve:
    """Answers, and keeps the connection until the client cuts it, or closes it."""

    async def serve(connection: Connection) -> None:
        await connection.request()
        connection.writer.write(answer)
        if not closes:
            await connection.cut()

    return serve


@asynccontextmanager
async def client(*, idle_seconds: float = 30) -> AsyncIterator[Upstream]:
    async with (
        Completions() as completions,
        Upstream(completions, connect_seconds=5, idle_seconds=idle_seconds) as upstream,
    ):
        yield upstream


async def opened_from(serve: Serve, *, idle_seconds: float = 30) -> AttemptResult:
    async with client(idle_seconds=idle_seconds) as http, worker(serve) as made:
        return await http.open(made.url, "/v1/x", b"{}", headers=HEADERS)


async def rest(stream: AnswerStream) -> bytes:
    events = stream.first
    while more := await stream.more():
        events += more
    stream.close()
    return b"".join(events)


async def test_a_request_is_sent_as_it_is_and_its_connection_used_again() -> None:
    seen = []

    async def serve(connection: Connection) -> None:
        while True:
            seen.append(await connection.request())
            connection.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)

    large = b"x" * 3_000_000
    async with client() as http, worker(serve) as made:
        for body in (b"{}", b"", large):
            opened = await http.open(made.url, "/v1/x?a=b", body, headers=HEADERS)
            assert opened.outcome is Outcome.ANSWERED
            assert opened.answer is not None
            assert (opened.answer.status, opened.answer.body) == (200, b"ok")
        assert len(made.connections) == 1
    head = seen[0][0].split(b"\r\n")
    assert head[0] == b"POST /v1/x?a=b HTTP/1.1"
    fields = {line.lower() for line in head[1:] if line}
    own = b"host: " + made.url.removeprefix("http://").encode()
    sent = {b"content-type: application/json", "x-name: wörd".encode(), b"content-length: 2", own}
    assert fields == sent
    assert [body for _, body in seen] == [b"{}", b"", large]


async def test_headers_of_an_answer_are_read() -> None:
    fields = b"X-Own: \xe4\r\nX-CacheFleet-Conversation: Abc\r\n"
    answer = b"HTTP/1.1 400 Bad\r\nContent-Length: 3\r\n" + fields + b"Set-Cookie: a=b\r\n\r\nbad"
    opened = await opened_from(always(answer))
    assert opened.outcome is Outcome.ANSWERED
    assert opened.answer is not None
    assert opened.answer.headers == ((b"x-own", b"\xe4"),)
    assert opened.answer.kept == "Abc"


@pytest.mark.parametrize("status", [204, 302, 401, 500, 503])
async def test_statuses_are_judged_and_no_redirect_is_followed(status: int) -> None:
    answer = b"HTTP/1.1 %d x\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n" % status
    opened = await opened_from(always(answer))
    assert opened.answer is not None
    assert opened.answer.status == status
    judged = Outcome.KEY_REFUSED if status == 401 else Outcome.ANSWERED if status < 500 else Outcome.SERVER_ERROR
    assert opened.outcome is judged


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok",
        b"HTTP/1.1 600 x\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 x\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
        CHUNKED,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok",
    ],
)
async def test_an_answer_that_is_none_is_lost(answer: bytes) -> None:
    assert (await opened_from(once(answer, closes=True))).outcome is Outcome.LOST


async def test_a_worker_that_is_not_there_is_unreachable() -> None:
    async with client() as http:
        async with worker(always(OK)) as made:
            pass
        for url in (made.url, "http://no.such.name.invalid:80"):
            assert (await http.open(url, "/", b"", headers=())).outcome is Outcome.UNREACHABLE


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", OK[:-1], CHUNKED])
async def test_silence_is_bounded(begun: bytes) -> None:
    assert (await opened_from(once(begun), idle_seconds=0.05)).outcome is Outcome.SILENT


async def test_a_long_answer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_budget, "MAX_ANSWER_BYTES", 1_000_000)
    endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1_000_001
    announced = b"HTTP/1.1 200 OK\r\ncontent-length: 1000001\r\n\r\n"  # of which nothing need come
    for answer in (endless, announced):
        assert (await opened_from(once(answer))).outcome is Outcome.OVERSIZED


async def test_all_whole_answers_have_one_budget() -> None:
    """It is given back with the last reference to an answer, or where one is given up."""
    size = 2 * COUNTED_BYTES
    large = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size
    async with client() as http, worker(always(large)) as made:
        http.answers = AnswerBudget(5 * size)

        async def opened() -> AttemptResult:
            return await http.open(made.url, "/", b"", headers=())

        kept = [await opened(), await opened()]
        assert [one.outcome for one in kept] == [Outcome.ANSWERED] * 2
        assert http.answers.held == 2 * size
        assert (await opened()).outcome is Outcome.CROWDED
        assert http.answers.held == 2 * size
        kept.pop()
        assert http.answers.held == size
        again = await opened()
        assert again.answer is not None
        assert again.answer.body == b"x" * size
        del again
        kept.clear()
        assert http.answers.held == 0


async def test_a_stream_that_is_nothing_but_an_error_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_budget, "MAX_ANSWER_BYTES", 1_000_000)
    error = chunk(b'data: {"error":{"message":"dead","code":500}}\n\n')
    endless = CHUNKED + error + chunk(b": " + b"x" * 100_000 + b"\n\n") * 11 + LAST
    assert (await opened_from(once(endless))).outcome is Outcome.OVERSIZED


async def test_a_stream_is_read_event_by_event() -> None:
    async with client() as http, worker(always(CHUNKED + FIRST + chunk(b"data:") + LAST)) as made:
        for _ in range(2):
            opened = await http.open(made.url, "/", b"", headers=())
            assert opened.outcome is Outcome.FIRST_EVENT
            assert opened.stream is not None
            assert await rest(opened.stream) == b'data: {"a":1}\n\ndata:data: [DONE]\n\n'
            assert opened.stream.outcome is Outcome.FINISHED
        assert len(made.connections) == 1


@pytest.mark.parametrize("how", ["close", "cancel", "never"])
async def test_an_unfinished_request_cuts_its_connection_at_once(how: str) -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    async def serve(connection: Connection) -> None:
        await connection.request()
        connection.writer.write(b"" if how == "never" else CHUNKED + FIRST)
        begun.set()
        await connection.cut()
        ended.set()

    async with client() as http, worker(serve) as made:
        asking = asyncio.create_task(http.open(made.url, "/", b"", headers=()))
        await begun.wait()
        if how == "never":
            asking.cancel()
        else:
            opened = await asking
            assert opened.stream is not None
            reading = asyncio.create_task(opened.stream.more())
            await asyncio.sleep(0.01)
            if how == "cancel":
                reading.cancel()
            opened.stream.close()
        await asyncio.wait_for(ended.wait(), 30)
        if how == "close":
            reading.cancel()


async def test_a_broken_stream_is_lost_unless_its_last_event_has_come() -> None:
    for events, outcome in ((FIRST, Outcome.LOST), (FIRST + LAST[:-5], Outcome.FINISHED)):
        async with client() as http, worker(once(CHUNKED + events, closes=True)) as made:
            opened = await http.open(made.url, "/", b"", headers=())
            assert opened.stream is not None
            await rest(opened.stream)
            assert opened.stream.outcome is outcome


async def test_a_stream_that_falls_silent_is_told() -> None:
    async with client(idle_seconds=0.05) as http, worker(once(CHUNKED + FIRST)) as made:
        opened = await http.open(made.url, "/", b"", headers=())
        assert opened.stream is not None
        await rest(opened.stream)
        assert opened.stream.outcome is Outcome.SILENT


async def test_a_connection_on_which_nothing_was_asked_for_came_is_not_used_again() -> None:
    unasked = asyncio.Event()

    async def serve(connection: Connection) -> None:
        await connection.request()
        connection.writer.write(OK)
        await connection.writer.drain()
        await asyncio.sleep(0.02)
        connection.writer.write(OK.replace(b"ok", b"no"))
        unasked.set()
        await connection.cut()

    async with client() as http, worker(serve) as made:
        for _ in range(2):
            opened = await http.open(made.url, "/", b"", headers=())
            assert opened.answer is not None
            assert opened.answer.body == b"ok"
            await unasked.wait()
            unasked.clear()
            await asyncio.sleep(0.02)
        assert len(made.connections) == 2


@pytest.mark.parametrize(
    "url", ["ftp://worker", "http://user@worker", "http://w\u00f6rker", "http://worker/a b", "worker:8000"]
)
async def test_a_url_that_cannot_be_asked_is_unreachable_and_logged_once(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client() as http:
        for _ in range(2):
            assert await http.open(url, "/", b"", headers=()) == AttemptResult(Outcome.UNREACHABLE)
            assert await http.hold(url, "/", b"", headers=(), seconds=30) == AttemptResult(Outcome.UNREACHABLE)
    assert [record.message for record in caplog.records if "a worker cannot be asked" in record.message] == [
        "a worker cannot be asked: its URL is not one of http or https, host, port and plain path"
    ]


async def test_a_path_or_header_that_is_not_plain_is_a_defect() -> None:
    async with client() as http, worker(always(OK)) as made:
        with pytest.raises(ValueError, match="path"):
            await http.open(made.url, "/with space", b"", headers=())
        with pytest.raises(ValueError, match="headers"):
            await http.open(made.url, "/", b"", headers=[("a", "b\r\nc: d")])


@pytest.mark.parametrize(("status", "ended"), [(b"200 OK", False), (b"503 No", True), (b"500 No", False)])
async def test_health_says_whether_an_engine_has_ended(status: bytes, *, ended: bool) -> None:
    async def serve(connection: Connection) -> None:
        connection.heads.append(await connection.reader.readuntil(b"\r\n\r\n"))
        connection.writer.write(b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n")

    async with client() as http, worker(serve) as made:
        assert await http.ended(made.url, 30) is ended
        assert made.connections[0].heads[0].startswith(b"GET /health HTTP/1.1\r\n")


async def test_an_engine_has_ended_where_nothing_listens_and_not_where_a_connection_breaks() -> None:
    answers = [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]

    async def serve(connection: Connection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        connection.writer.write(answers.pop(0))

    async with client() as http:
        async with worker(serve) as made:
            assert await http.ended(made.url, 30) is False
            assert answers == []
        assert await http.ended(made.url, 30) is True
        assert await http.ended("http://no.such.name.invalid", 0.2) is False


async def test_many_are_asked_at_once() -> None:
    async with client() as http, worker(always(OK)) as made:
        answers = await asyncio.gather(*(http.open(made.url, "/", b"{}", headers=()) for _ in range(100)))
        assert {opened.outcome for opened in answers} == {Outcome.ANSWERED}
        assert 1 < len(made.connections) <= 100  # those that are answered early are used again


class Kept:
    """What an attempt is given, which is gone once nobody refers to it."""


async def test_what_was_cancelled_is_gone_without_a_garbage_collection() -> None:
    async def serve(connection: Connection) -> None:
        await connection.request()
        await connection.cut()

    async with client() as http, worker(serve) as made:
        kept = Kept()
        gone = weakref.ref(kept)
        watched: Any = kept
        asking = asyncio.create_task(http.open(made.url, "/", b"{}", headers=HEADERS, watch=watched))
        del kept, watched
        await until(lambda: bool(made.connections and made.connections[0].heads))
        with collector_off():
            asking.cancel()
            await asyncio.wait([asking])
            del asking
            await until(lambda: gone() is None)
