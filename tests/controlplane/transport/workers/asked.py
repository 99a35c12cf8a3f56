"""Asks a fake worker, and tells all that came of it as one value."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import AnswerStream, AttemptResult
from cachefleet_controlplane.transport.completions import Completions
from cachefleet_controlplane.wire.headers import Header
from tests.controlplane.transport.workers.fake_raw_worker import FakeRawWorker, Step, fake_raw_worker

PATH: Final = "/v1/chat/completions"
BODY: Final = b'{"model":"fake"}'
HEADERS: Final = [("content-type", "application/json"), ("x-one", "1"), ("authorization", "Bearer k")]


@dataclass(frozen=True)
class Came:
    """What came of an attempt: its outcome, the answer or the stream's events, and why the stream ended."""

    outcome: Outcome
    status: int = 0
    headers: tuple[Header, ...] = ()
    body: bytes = b""
    events: tuple[bytes, ...] = ()
    end: Outcome | None = None


@asynccontextmanager
async def upstream_of(**bounds: Any) -> AsyncIterator[Upstream]:
    """A client of workers."""
    given = {"connect_seconds": 5.0, "idle_seconds": 30.0, **bounds}
    async with Completions() as completions, Upstream(completions, **given) as upstream:
        yield upstream


async def opened(upstream: Upstream, worker: FakeRawWorker, body: bytes = BODY) -> AttemptResult:
    """The beginning of an answer."""
    return await upstream.open(worker.url, PATH, body, headers=HEADERS)


async def came(upstream: Upstream, worker: FakeRawWorker, body: bytes = BODY) -> Came:
    """All of an answer; its connection is left as the gateway leaves it."""
    return await rest(await opened(upstream, worker, body))


async def rest(begun: AttemptResult) -> Came:
    """What is left of an answer."""
    if begun.stream is not None:
        return await _read(begun.outcome, begun.stream)
    if begun.answer is None:
        return Came(begun.outcome)
    return Came(begun.outcome, begun.answer.status, begun.answer.headers, begun.answer.body)


async def _read(outcome: Outcome, stream: AnswerStream) -> Came:
    events = list(stream.first)
    while more := await stream.more():
        events += more
    stream.close()
    return Came(outcome, stream.status, stream.headers, events=tuple(events), end=stream.outcome)


async def answered(*steps: Step, **bounds: Any) -> Came:
    """What comes of an answer of these steps."""
    async with fake_raw_worker(steps) as worker, upstream_of(**bounds) as upstream:
        return await came(upstream, worker)
