"""Relays of workers' streams: native code passes the same bytes as Python, and as much is known of them."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from cachefleet_native import KeptBytes
from hypothesis import given, settings
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.converse.turn import PlainTurn
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.request.resume_eligibility import ResumeLimits
from cachefleet_controlplane.gateway.retry.resume import Resumption
from cachefleet_controlplane.gateway.retry.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.retry.stream_relay import StreamRelay
from cachefleet_controlplane.gateway.send import worker_call
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.worker_call import NativeResponse, Relayed
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.transport.native_exchange import NativeReply, reply_of
from cachefleet_controlplane.wire.http_exchange import DEPARTURE, ClientGoneError, Reply, while_present
from tests.controlplane.transport.transports import Served, made
from tests.controlplane.transport.workers.fake_raw_worker import End, FakeRawWorker, Step, fake_raw_worker
from tests.controlplane.waiting import until

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
ASK = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
NAME = {"id": "c-1", "object": "chat.completion.chunk", "created": 12, "model": "m"}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
DONE = b"data: [DONE]\n\n"


def event(**members: Any) -> bytes:
    return b"data: " + json.dumps(NAME | members, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def said(text: str, ids: list[int] | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    return event(choices=[choice | ({} if ids is None else {"token_ids": ids}) | more])


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}], prompt_token_ids=[5, 6, 7])
BEGINNING = ("c-1", "chat.completion.chunk", 12, "m", b"[5,6,7]")
LAST = [said("", [9], finish_reason="stop"), event(choices=[], usage=USAGE, system_fingerprint="f"), DONE]
ERROR = b'data: {"error":{"message":"x","code":500}}\n\n'


@dataclass
class Told:
    """What is known of a stream once it has been relayed."""

    outcome: str
    usage: Any
    fingerprint: Any
    produced: Any
    sent: int | None
    so_far: Usage
    """Tokens produced and of the prompt, by the stream's events."""


@dataclass
class Side:
    """A gateway of the relay alone before one worker; without ``native`` all events pass through Python."""

    served: Served
    worker: FakeRawWorker
    native: bool = True
    resumable: bool = True
    endpoint: str = Endpoint.CHAT
    strip_ids: bool = True
    single: bool = True
    send_seconds: float = 30
    told: list[Told] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self, steps: Sequence[Step]) -> tuple[bytes, Told]:
        """What a client gets of a stream, and what is known then."""
        self.worker.answers = [list(steps)]
        self.worker.answered = 0
        async with await self.served.connect() as connection:
            await connection.send(ASK)
            response = await connection.response("POST")
        await until(lambda: bool(self.told))  # native code may have ended the answer
        return response.body, self.told.pop()


def _asgi_reply(scope: Any, send: Any, *, seconds: float) -> Reply:
    return Reply(send, seconds=seconds, path=scope["path"])


def _resumption(*, resumable: bool) -> Resumption:
    limits = ResumeLimits(0, None, (), stop_included=False) if resumable else None
    asked = Request(None, None, None, limits=limits)  # type: ignore[arg-type] # it resumes nothing
    return Resumption(None, asked, KeptBytes(1 << 20))  # type: ignore[arg-type]


def app_of(sides: list[Side], upstream: Upstream) -> Any:
    async def relay(side: Side, reply: Any) -> None:
        opened = await upstream.open(side.worker.url, "/", b"", headers=(), beside=getattr(reply, "native", None))
        assert opened.stream is not None
        resuming = _resumption(resumable=side.resumable)
        transformer = StreamFilter(side.endpoint, strip_usage=True, strip_ids=side.strip_ids, single=side.single)
        await reply.start(200, [])
        try:
            stalled = StalledAttempts(lambda _: {})
            running = StreamRelay(reply, PlainTurn(None), resuming, stalled)  # type: ignore[arg-type] # not asked for
            outcome = await running.run(opened.stream, transformer, worker="w", elsewhere=bool)
            await reply.end()
            joiner = resuming.joiner
            attempt, sent = (joiner._attempt, joiner._sent) if joiner else (None, None)
            so_far = transformer.so_far(prompts=1, choices=1, known_prompt=0)
            side.told.append(Told(outcome, transformer.usage, transformer.fingerprint, attempt, sent, so_far))
        finally:
            opened.stream.close()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        side = sides[0]
        made = reply_of if side.native else _asgi_reply
        reply = made(scope, send, seconds=side.send_seconds)
        await receive()
        try:
            if not await while_present(relay(side, reply), receive, reply, scope.get(DEPARTURE)):
                side.gone.set()
        except ClientGoneError:
            side.gone.set()

    return app


@asynccontextmanager
async def side_of(**options: Any) -> AsyncIterator[Side]:
    sides: list[Side] = []
    async with (
        Completions() as completions,
        Upstream(completions, connect_seconds=5, idle_seconds=30) as upstream,
        fake_raw_worker() as worker,
    ):
        server = made(completions, app_of(sides, upstream))
        serving = asyncio.create_task(server.serve())
        sides.append(Side(Served(server, await server.listening()), worker, **options))
        try:
            yield sides[0]
        finally:
            server.stop()
            await serving


def in_pieces(stream: bytes, cuts: Iterable[int]) -> list[Step]:
    """The stream's bytes in chunks that come one after the other."""
    ends = sorted({*cuts, len(stream)})
    steps: list[Step] = [HEAD]
    for start, end in zip([0, *ends], ends, strict=False):
        if end > start:
            steps += [chunk(stream[start:end]), 0.0005]
    return steps


async def alike(sides: Sequence[Side], steps: Sequence[Step]) -> tuple[bytes, Told]:
    """What comes of a stream on all sides, which is the same."""
    first, *others = [await side.play(steps) for side in sides]
    for other in others:
        assert other == first
    return first


@pytest.fixture
def relays(monkeypatch: pytest.MonkeyPatch) -> list[Relayed]:
    """What each relay by native code has left."""
    left: list[Relayed] = []
    found = NativeResponse.relayed

    async def relayed(self: NativeResponse) -> Relayed:
        left.append(await found(self))
        return left[-1]

    monkeypatch.setattr(NativeResponse, "relayed", relayed)
    return left


texts = st.text(max_size=6)
ids = st.lists(st.integers(0, 2**32 - 1), max_size=3)
ordinary = st.builds(said, texts, st.none() | ids, index=st.integers(0, 1))
unusual = st.sampled_from(
    [
        b": ping\n\n",
        b"\n\n",
        b"event: x\ndata: {}\n\n",
        b"data: nonsense\n\n",
        b"data: \xff\n\n",
        said("a", [1]).replace(b"\n\n", b"\r\n\r\n"),
        said("a", [1]).replace(b'":', b'": '),
        said('\x07\t\n"\\é€😀', [1]),
        said("a", [1]).replace(b'"a"', b'"\\ud800"'),
        said("a", [-1]),
        said("a", [1], prompt_token_ids=[1, 2]),
        said("a", [1], logprobs={"content": [{"token": "a", "bytes": [1, 2]}]}),
        event(choices=[{"index": 0, "delta": {}, "token_ids": [7], "finish_reason": None}]),
        event(choices=[{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": '{"a'}}]}, "token_ids": [8]}]),
        event(choices=[{"index": 0, "text": "t", "token_ids": [3]}], usage=USAGE),
        event(choices=[], usage=USAGE),
        event(
            choices=[{"index": 0, "delta": {"content": "k"}, "token_ids": [4]}], kv_transfer_params={"token_ids": [1]}
        ),
        said("", [9], finish_reason="stop"),
        said("", [9], finish_reason="cache_threshold"),
    ]
)
streams = st.lists(ordinary | ordinary | ordinary | unusual, max_size=12)


@settings(max_examples=60)
@given(data=st.data(), middle=streams, resumable=st.booleans(), strip_ids=st.booleans(), whole=st.booleans())
def test_streams_pass_alike_wherever_they_are_cut(
    data: st.DataObject, middle: list[bytes], *, resumable: bool, strip_ids: bool, whole: bool
) -> None:
    single = data.draw(st.booleans())
    stream = b"".join([FIRST, *middle, *LAST]) if whole else b"".join([FIRST, *middle])
    cuts = data.draw(st.lists(st.integers(1, len(stream)), max_size=6))
    steps = [*in_pieces(stream, cuts), b"0\r\n\r\n" if whole else End.CLOSE]

    async def play() -> None:
        async with side_of(native=False) as one, side_of() as two:
            for side in (one, two):
                side.resumable, side.strip_ids, side.single = resumable, strip_ids, resumable or single
            await alike((one, two), steps)

    asyncio.run(play())


async def test_a_stream_may_be_cut_at_every_byte(relays: list[Relayed]) -> None:
    words = ["Ä", "b\n", "😀", ""]
    stream = b"".join([FIRST, *(said(word, [number]) for number, word in enumerate(words)), *LAST])
    async with side_of(native=False) as one, side_of() as two:
        for steps in (in_pieces(stream, range(len(stream))), in_pieces(stream, ())):
            body, told = await alike((one, two), [*steps, b"0\r\n\r\n"])
            assert body.count(b'"token_ids":null') == len(words) + 1
            assert told.produced.ids == [0, 1, 2, 3, 9]
            assert told.produced.text == "Äb\n😀"
            assert told.sent == 4
            assert told.usage.completion_tokens == 2
    at_every_byte, *_, at_once = relays
    assert (at_every_byte.text, at_once.text) == ("Äb\n😀", "Äb\n😀")
    assert (at_every_byte.beginning, at_once.beginning) == (None, BEGINNING)  # Python has read what came alone


async def test_what_is_ordinary_is_relayed_without_python(relays: list[Relayed]) -> None:
    steps: list[Step] = [HEAD, chunk(FIRST), 0.01, *(chunk(said("x", [1])) for _ in range(500)), b"0\r\n\r\n"]
    async with side_of() as side:
        _, told = await side.play(steps)
        assert told.produced.text == "x" * 500
    assert len(relays) == 1
    assert (relays[0].events, relays[0].ended, relays[0].failure) == ([], True, "")


async def test_an_ordinary_beginning_is_relayed_unread(relays: list[Relayed]) -> None:
    steps: list[Step] = [HEAD, chunk(FIRST + said("a", [1])), 0.005, chunk(said("b", [2])), 0.005, End.CLOSE]
    async with side_of(native=False) as one, side_of() as two:
        _, told = await alike((one, two), steps)
        assert (told.outcome, told.produced.prompt_ids, told.produced.ids) == ("cut_off", [5, 6, 7], [1, 2])
        one.resumable = two.resumable = False
        await alike((one, two), steps)
    assert [left.beginning for left in relays] == [BEGINNING, None]


@pytest.mark.parametrize(
    "first",
    [
        FIRST,
        FIRST + said("", []),
        said("a", [1], finish_reason="stop"),
        said("", finish_reason="cache_threshold"),
        event(choices=[{"index": 0, "delta": {"content": "a"}}], usage=USAGE),
    ],
)
async def test_another_beginning_is_read_by_python(first: bytes, relays: list[Relayed]) -> None:
    async with side_of(native=False) as one, side_of() as two:
        await alike((one, two), [HEAD, chunk(first), 0.01, chunk(said("b", [2])), *map(chunk, LAST), b"0\r\n\r\n"])
    assert all(left.beginning is None for left in relays)


async def test_an_ordinary_end_is_relayed_too(relays: list[Relayed], monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    monkeypatch.setattr(StalledAttempts, "heard", lambda _, answer: heard.append(answer.worker))
    monkeypatch.setattr(worker_call, "END_SECONDS", 30.0)
    told_to: list[Step] = [HEAD, chunk(FIRST), 0.01, *(chunk(said("x", [1])) for _ in range(3))]
    async with side_of() as side:
        _, told = await side.play([*told_to, *(step for last in LAST for step in (chunk(last), 0.002)), b"0\r\n\r\n"])
        assert (told.outcome, told.produced.ids, told.usage.completion_tokens) == ("finished", [1, 1, 1, 9], 2)
        assert heard == ["w"]
    assert [(left.events, left.ended, left.finish, left.whole) for left in relays] == [([], True, "stop", True)]


async def test_who_leaves_once_all_was_relayed_has_had_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    end, relayed = NativeReply.end, list[bool]()

    async def after_leaving(self: NativeReply, data: bytes = b"") -> None:
        relayed.append(self.native.relayed)
        self._exchange.left()
        await end(self, data)

    monkeypatch.setattr(NativeReply, "end", after_leaving)
    async with side_of() as side:
        _, told = await side.play([HEAD, chunk(FIRST + said("x", [1])), *map(chunk, LAST), b"0\r\n\r\n"])
        assert (told.outcome, relayed, side.gone.is_set()) == ("finished", [True], False)


async def test_what_nobody_resumes_is_relayed_to_its_end(
    relays: list[Relayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_call, "END_SECONDS", 30.0)
    ends = [said("", [9], index=index, finish_reason="stop") for index in (1, 0)]
    hollow = event(choices=[{"index": 1, "delta": {}, "token_ids": [7], "finish_reason": None}])
    several = [said("a", [1]), said("b", [2], index=1), hollow, b": ping\n\n", ends[0], said("c", [3]), ends[1]]
    streams = [[*several, *LAST[1:]], [said("a", [1]), LAST[0], DONE]]
    async with side_of(native=False) as one, side_of() as two:
        for side in (one, two):
            side.resumable = side.single = False
        for stream in streams:
            parts: list[Step] = [part for each in stream for part in (chunk(each), 0.002)]
            steps: list[Step] = [HEAD, chunk(FIRST + said("x", [1])), *parts, b"0\r\n\r\n"]
            body, told = await alike((one, two), steps)
            assert (told.outcome, body.endswith(DONE)) == ("finished", True)
    assert [(left.events, left.ended, left.whole) for left in relays] == [([], True, True)] * 2


def named(name: str, **members: Any) -> bytes:
    data = json.dumps({"type": name, **members}, separators=(",", ":")).encode()
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


MESSAGE = [
    named("message_start", message={"usage": {"input_tokens": 2, "cache_read_input_tokens": 7}}),
    named("content_block_start", index=0),
    *(named("content_block_delta", delta={"type": "text_delta", "text": '"error"'}) for _ in range(3)),
    b'event: ping\ndata: {"type":"ping"}\n\n',
    named("message_delta", usage={"output_tokens": 3}),
    named("message_stop"),
]
RESPONSE = [
    named("response.created", response={"error": None}, sequence_number=0),
    named("response.output_item.added", sequence_number=1),
    *(named("response.output_text.delta", delta="x", sequence_number=2 + number) for number in range(3)),
    named(
        "response.completed",
        response={
            "error": None,
            "usage": {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 7}},
        },
    ),
]


@pytest.mark.parametrize(
    ("endpoint", "stream"),
    [(Endpoint.MESSAGES, MESSAGE), (Endpoint.MESSAGES, [*MESSAGE, DONE]), (Endpoint.RESPONSES, RESPONSE)],
)
async def test_streams_of_other_apis_are_relayed_to_their_end(
    endpoint: str, stream: list[bytes], relays: list[Relayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_call, "END_SECONDS", 30.0)
    steps: list[Step] = [HEAD, *(part for each in stream for part in (chunk(each), 0.002)), b"0\r\n\r\n"]
    options: dict[str, Any] = {"resumable": False, "endpoint": endpoint}
    async with side_of(native=False, **options) as one, side_of(**options) as two:
        body, told = await alike((one, two), steps)
    assert (body, told.outcome, told.usage) == (b"".join(stream), "finished", Usage(9, 3, 7))
    assert told.so_far.completion_tokens == 3
    assert [(left.events, left.ended, left.whole) for left in relays] == [([], True, True)]


@pytest.mark.parametrize(
    ("endpoint", "stream", "name"),
    [
        (Endpoint.MESSAGES, MESSAGE, "error"),
        (Endpoint.MESSAGES, MESSAGE, "message_stop"),
        (Endpoint.RESPONSES, RESPONSE, "error"),
        (Endpoint.RESPONSES, RESPONSE, "response.failed"),
    ],
)
async def test_an_error_in_a_stream_of_another_api_comes_to_python(
    endpoint: str, stream: list[bytes], name: str, relays: list[Relayed]
) -> None:
    data = json.dumps({"error": {"type": "internal_error", "message": "m"}}).encode()
    error = b"event: %s\ndata: %s\n\n" % (name.encode(), data)
    steps: list[Step] = [HEAD, *(part for each in [*stream[:4], error] for part in (chunk(each), 0.005)), b"0\r\n\r\n"]
    options: dict[str, Any] = {"resumable": False, "endpoint": endpoint}
    async with side_of(native=False, **options) as one, side_of(**options) as two:
        body, told = await alike((one, two), steps)
    assert body.startswith(b"".join(stream[:4]) + b"event: error\n")
    assert (told.outcome, relays[0].events) == ("error_event", [error])


@pytest.mark.parametrize("more", [b": bye\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'])
async def test_a_stream_that_breaks_after_its_end_was_whole(more: bytes) -> None:
    steps: list[Step] = [HEAD, *(part for each in [*MESSAGE, more] for part in (chunk(each), 0.01)), End.CLOSE]
    options: dict[str, Any] = {"resumable": False, "endpoint": Endpoint.MESSAGES}
    async with side_of(native=False, **options) as one, side_of(**options) as two:
        body, told = await alike((one, two), steps)
    assert (body, told.outcome) == (b"".join([*MESSAGE, more]), "finished")


@pytest.mark.parametrize("name", [b"message_stop", b"response.completed"])
async def test_a_chat_may_end_with_an_event_of_another_api(name: bytes) -> None:
    stream = [FIRST, said("a", [1]), LAST[0], b'event: %s\ndata: {"choices":[]}\n\n' % name]
    steps: list[Step] = [HEAD, *(part for each in stream for part in (chunk(each), 0.01)), b"0\r\n\r\n"]
    async with side_of(native=False, resumable=False) as one, side_of(resumable=False) as two:
        body, told = await alike((one, two), steps)
    assert (body.endswith(stream[-1]), b'"finish_reason":"' in body, told.outcome) == (True, True, "finished")


async def test_an_answer_that_is_given_up_ends_before_that(relays: list[Relayed]) -> None:
    given_up = said("", [9], finish_reason="abort")
    async with side_of(native=False, resumable=False) as one, side_of(resumable=False) as two:
        steps: list[Step] = [
            HEAD,
            chunk(FIRST),
            0.005,
            chunk(said("a", [1])),
            0.005,
            chunk(given_up + DONE),
            0.005,
            b"0\r\n\r\n",
        ]
        body, told = await alike((one, two), steps)
    assert (told.outcome, body.endswith(said("a", [1]).replace(b"[1]", b"null"))) == ("aborted", True)
    assert [left.events for left in relays] == [[given_up, DONE]]


@pytest.mark.parametrize("last", [said("", [9], finish_reason="abort"), said("", [9], finish_reason="cache_threshold")])
async def test_another_end_comes_to_python_at_once(
    last: bytes, relays: list[Relayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_call, "END_SECONDS", 30.0)
    end = [last, *LAST[1:]]
    async with side_of(native=False) as one, side_of() as two:
        _, told = await alike(
            (one, two), [HEAD, chunk(FIRST), 0.01, chunk(said("x", [1])), *map(chunk, end), b"0\r\n\r\n"]
        )
        assert told.produced.ids == [1, 9]
    assert [(left.events, left.ended, left.finish, left.whole) for left in relays] == [(end, True, "", False)]


async def test_the_end_of_a_stream_that_dawdles_is_not_waited_for(relays: list[Relayed]) -> None:
    go_on = asyncio.Event()
    steps: list[Step] = [
        HEAD,
        chunk(FIRST),
        0.01,
        chunk(said("x", [1])),
        chunk(LAST[0]),
        go_on,
        chunk(b"".join(LAST[1:])),
    ]
    async with side_of() as side:
        playing = asyncio.create_task(side.play([*steps, b"0\r\n\r\n"]))
        await until(lambda: bool(relays))
        go_on.set()
        _, told = await playing
        assert (told.outcome, told.usage.completion_tokens) == ("finished", 2)
    assert [(left.events, left.ended) for left in relays] == [([LAST[0]], False)]


async def test_an_error_after_the_end_is_read_for_itself(
    relays: list[Relayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_call, "END_SECONDS", 30.0)
    relaying: list[NativeResponse] = []
    relayed = NativeResponse.relayed

    async def seen(self: NativeResponse) -> Relayed:
        relaying.append(self)
        return await relayed(self)

    monkeypatch.setattr(NativeResponse, "relayed", seen)
    go, read = asyncio.Event(), asyncio.Event()

    def steps(*before: Step) -> list[Step]:
        first, second = before
        return [HEAD, chunk(FIRST), first, chunk(LAST[0]), second, chunk(ERROR), chunk(DONE), b"0\r\n\r\n"]

    async with side_of(native=False) as one, side_of() as two:
        expected = await one.play(steps(0.01, 0.01))
        playing = asyncio.create_task(two.play(steps(go, read)))
        await until(lambda: bool(relaying) and 0.05 < relaying[0].silent_seconds() < math.inf)
        before = time.monotonic() - relaying[0].silent_seconds()
        go.set()  # and once native code has read the end of the choice, while it waits for the stream's
        await until(lambda: time.monotonic() - relaying[0].silent_seconds() > before + 0.02)
        read.set()
        assert await playing == expected
    assert (expected[1].outcome, b"error" in expected[0]) == ("error_event", True)
    assert [(left.events, left.ended) for left in relays] == [([LAST[0]], False)]


@pytest.mark.parametrize(
    "end",
    [End.CLOSE, End.RESET, b"zz\r\n"],
)
async def test_a_stream_that_breaks_off_can_be_resumed(end: Step) -> None:
    async with side_of() as side:
        body, told = await side.play([HEAD, chunk(FIRST), 0.005, chunk(said("a", [1])), 0.005, end])
        assert (told.outcome, told.produced.ids, told.produced.text) == ("cut_off", [1], "a")
        assert body.endswith(said("a", [1]).replace(b"[1]", b"null"))


async def test_an_error_voids_what_came_with_it() -> None:
    async with side_of(native=False) as one, side_of() as two:
        begun: list[Step] = [HEAD, chunk(FIRST), 0.005, chunk(said("a", [1])), 0.005]
        body, told = await alike((one, two), [*begun, chunk(said("b", [2]) + ERROR), 0.005, b"0\r\n\r\n"])
        assert (told.outcome, told.produced.ids) == ("cut_off", [1])
        assert b"error" not in body


async def test_an_event_without_end_is_oversized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachefleet_controlplane.gateway.send.worker_call.MAX_EVENT_BYTES", 1000)
    monkeypatch.setattr("cachefleet_controlplane.gateway.send.client.MAX_EVENT_BYTES", 1000)
    async with side_of(native=False) as one, side_of() as two:
        steps: list[Step] = [HEAD, chunk(FIRST), 0.005, chunk(b"data: " + b"x" * 2000), End.SILENCE]
        _, told = await alike((one, two), steps)
        assert told.outcome == "oversized"


async def test_a_client_that_leaves_frees_the_worker_at_once() -> None:
    async with side_of() as side:
        side.worker.answers = [[HEAD, chunk(FIRST), 0.005, chunk(said("a", [1])), End.SILENCE]]
        async with await side.served.connect() as connection:
            await connection.send(ASK)
            await connection.reader.readuntil(b'"a"')
        async with asyncio.timeout(10):
            await side.gone.wait()
            await until(lambda: not side.worker.open)


async def test_a_client_that_takes_nothing_frees_the_worker() -> None:
    async with side_of(send_seconds=0.05) as side:
        flood: list[Step] = [chunk(said("x" * 60_000, [1]))] * 400
        side.worker.answers = [[HEAD, chunk(FIRST), *flood, End.SILENCE]]
        async with await side.served.connect() as connection:
            connection.writer.transport.pause_reading()  # type: ignore[attr-defined] # of a socket
            await connection.send(ASK)
            async with asyncio.timeout(20):
                await side.gone.wait()
                await until(lambda: not side.worker.open)
