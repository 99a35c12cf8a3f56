"""What is learnt of answers that Envoy passes on, and what is left of requests however they end."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cachefleet_controlplane.store.decision_records import DecisionRecord, EndedBy
from tests.controlplane.gateway.harness import Front, chat, engine, front
from tests.controlplane.gateway.picker.envoy_stub import BUFFERED, DUPLEX, EnvoyStub, picker
from tests.controlplane.waiting import until
from tests.fakes.engine import FakeEngine

MODES = pytest.mark.parametrize("mode", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
COUNTS = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 4}}
WHOLE = json.dumps({"object": "chat.completion", "choices": [], "usage": COUNTS}).encode()
SERVERS = 4
"""Numbers of two servers: of requests and of departures."""
SSE = "text/event-stream; charset=utf-8"


def _event(**members: object) -> bytes:
    return (
        b"data: "
        + json.dumps({"id": "c", "object": "chat.completion.chunk"} | members, separators=(",", ":")).encode()
        + b"\n\n"
    )


def _token(text: str) -> bytes:
    return _event(choices=[{"index": 0, "delta": {"content": text}, "finish_reason": None}])


LAST = _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
USAGE = _event(choices=[], usage=COUNTS)
DONE = b"data: [DONE]\n\n"
STREAM = [_token("a"), _token("b") + _token("c"), LAST, USAGE, DONE]


@asynccontextmanager
async def _two() -> AsyncIterator[tuple[Front, EnvoyStub, list[FakeEngine]]]:
    async with engine() as one, engine() as two, front([one, two]) as made, picker(made) as envoy:
        yield made, envoy, [one, two]


async def _settled(made: Front) -> None:
    """Nothing is left of any request."""
    assert made.server is not None
    handlers = made.server._completions._handlers
    await until(lambda: (made.fleet.view().inflight_requests, made.gateway.under_way, len(handlers)) == (0, 0, SERVERS))
    assert (made.gateway.bodies.held_bytes, len(made.queue)) == (0, 0)


async def _record(made: Front) -> DecisionRecord:
    """The last one, once its request is over."""
    await _settled(made)
    return made.records[-1]


@MODES
async def test_a_whole_answers_usage_is_accounted(mode: int) -> None:
    async with _two() as (made, envoy, _):
        asking, _ = await envoy.ask(chat("x"), mode=mode)
        await asking.answered(WHOLE)
        record = await _record(made)
    assert (record.status, record.completion_tokens, record.cached_tokens) == (200, 3, 4)
    assert [attempt.outcome for attempt in record.attempts] == ["answered"]


@pytest.mark.parametrize("asked", [False, True])
async def test_a_streams_usage_is_accounted_and_the_client_gets_it_where_it_has_asked(*, asked: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if asked else {}
    async with _two() as (made, envoy, _):
        asking, picked = await envoy.ask(chat("x", stream=True, **options))
        got, _ = await asking.answered(*STREAM, content_type=SSE)
        record = await _record(made)
    assert picked.members()["stream_options"]["include_usage"] is True
    assert (USAGE in got, DONE in got, got.count(b'"content"')) == (asked, True, 3)
    assert (record.completion_tokens, record.cached_tokens) == (3, 4)
    assert record.ttft_seconds is not None
    assert [attempt.outcome for attempt in record.attempts] == ["finished"]


async def test_events_are_found_wherever_envoy_cuts_a_stream() -> None:
    stream, rng = b"".join(STREAM), random.Random(7)
    async with _two() as (made, envoy, _):
        for _ in range(5):
            asking, _ = await envoy.ask(chat("x", stream=True, stream_options={"include_usage": True}))
            cuts = sorted(rng.sample(range(1, len(stream)), 6))
            pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
            got, _ = await asking.answered(*pieces, b"", content_type=SSE)
            assert got == stream
            assert (await _record(made)).completion_tokens == 3


async def test_a_prompt_is_not_waited_for_once_its_stream_has_begun() -> None:
    async with _two() as (made, envoy, _):
        asking, _ = await envoy.ask(chat("word " * 200, stream=True))
        await asking.begun(content_type=SSE)
        assert sum(worker.inflight_tokens for worker in made.fleet.view().workers) > 200
        await asking.piece(_token("a"))
        async with asyncio.timeout(20):  # it is taken for computed after some 30, too
            await until(lambda: sum(worker.inflight_tokens for worker in made.fleet.view().workers) == 0)
        asking.leave()
        await _settled(made)


async def test_a_stream_that_breaks_off_is_accounted_as_far_as_it_came() -> None:
    async with _two() as (made, envoy, _):
        asking, _ = await envoy.ask(chat("x", stream=True))
        await asking.begun(content_type=SSE)
        await asking.piece(_token("a") + _token("b"))
        asking.leave()
        record = await _record(made)
    assert (record.ended_by, record.completion_tokens) == (EndedBy.CLIENT, 2)
    assert [attempt.outcome for attempt in record.attempts] == ["cancelled"]


@MODES
@pytest.mark.parametrize("phase", ["head", "body", "picked", "answer head", "answer body"])
async def test_nothing_is_left_of_a_request_that_ends_in_any_phase(phase: str, mode: int) -> None:
    async with _two() as (made, envoy, _):
        asking = envoy.asking(mode)
        await asking.head()
        if phase != "head":
            await asking.body(json.dumps(chat("x", stream=True)).encode(), end=phase != "body" or mode == BUFFERED)
        if phase in {"picked", "answer head", "answer body"}:
            if mode == DUPLEX:
                await asking.body(b"")
            await asking.picked()
            await until(lambda: made.fleet.view().inflight_requests == 1)
        if phase.startswith("answer"):
            await asking.begun(content_type=SSE)
        if phase == "answer body":
            await asking.piece(_token("a"))
        asking.leave()
        await _settled(made)


async def test_the_worker_that_has_answered_is_the_one_of_the_record_and_one_that_was_passed_over_is_left_out() -> None:
    async with _two() as (made, envoy, _):
        asking, picked = await envoy.ask(chat("x"))
        await asking.answered(WHOLE, served=picked.endpoints[1])
        record = await _record(made)
        again, after = await envoy.ask(chat("y"))
        await again.answered(WHOLE)
        await _record(made)
    addresses = [worker.url.removeprefix("http://") for worker in made.engines]
    assert record.worker == made.name(addresses.index(picked.endpoints[1]))
    assert [attempt.outcome for attempt in record.attempts] == ["unreachable", "answered"]
    assert after.endpoints[0] == picked.endpoints[1]


@pytest.mark.parametrize("served", [None, "10.0.0.9:1", ""])
async def test_where_envoy_does_not_tell_who_has_answered_it_was_the_first(served: str | None) -> None:
    async with _two() as (made, envoy, _):
        asking, picked = await envoy.ask(chat("x"))
        await asking.answered(WHOLE, served=served)
        record = await _record(made)
    addresses = [worker.url.removeprefix("http://") for worker in made.engines]
    assert record.worker == made.name(addresses.index(picked.endpoints[0]))
    assert [attempt.outcome for attempt in record.attempts] == ["answered"]


async def test_envoys_own_503_blames_the_worker_and_passes() -> None:
    words = b"upstream connect error or disconnect/reset before headers. reset reason: connection failure"
    async with _two() as (made, envoy, _):
        asking, picked = await envoy.ask(chat("x"))
        got, _ = await asking.answered(words, status=503, content_type="text/plain")
        record = await _record(made)
        again, after = await envoy.ask(chat("y"))
        await again.answered(WHOLE)
        await _record(made)
    assert (got, record.status) == (words, 503)
    assert [attempt.outcome for attempt in record.attempts] == ["unreachable"]
    assert after.endpoints[0] == picked.endpoints[1]


@pytest.mark.parametrize(("status", "outcome"), [(400, "answered"), (500, "server_error"), (401, "key_refused")])
async def test_a_workers_error_passes_and_is_recorded(status: int, outcome: str) -> None:
    async with _two() as (made, envoy, _):
        asking, _ = await envoy.ask(chat("x"))
        got, _ = await asking.answered(b'{"error":{}}', status=status)
        record = await _record(made)
    assert (got, record.status) == (b'{"error":{}}', status)
    assert [attempt.outcome for attempt in record.attempts] == [outcome]


async def _mixed(envoy: EnvoyStub, rng: random.Random) -> None:
    mode = rng.choice([DUPLEX, BUFFERED])
    body = rng.choice([chat("x"), chat("y", stream=True), chat("z", model="other"), b"junk", chat("n", n=2)])
    asking, picked = await envoy.ask(body, mode=mode)
    if picked.status:
        return None
    end = rng.randrange(5)
    if end == 0:
        return asking.leave()
    if end == 1:
        await asking.begun(content_type=SSE)
        await asking.piece(_token("a"))
        return asking.leave()
    if isinstance(body, dict) and body.get("stream") and mode == DUPLEX:
        await asking.answered(*STREAM, content_type=SSE)
    else:
        await asking.answered(WHOLE, status=rng.choice([200, 200, 400, 500]), served=rng.choice(picked.endpoints))
    return None


@pytest.mark.parametrize("requests", [100, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_mixed_requests_leave_nothing(requests: int) -> None:
    rng = random.Random(1)
    async with _two() as (made, envoy, _):
        for _ in range(requests):
            await _mixed(envoy, rng)
        await _settled(made)
