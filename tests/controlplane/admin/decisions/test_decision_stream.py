"""Decisions as they are made: those asked for, bounded for each viewer, until the replica ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Message

from cachefleet_controlplane.admin.decisions import decision_stream
from cachefleet_controlplane.store import decision_feed
from cachefleet_controlplane.store.decision_log import DecisionLog
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.wire import event_stream
from tests.controlplane.admin.conftest import TOKEN, Doorkeeper
from tests.controlplane.admin.test_admin_app import assert_problem
from tests.controlplane.store.conftest import make_record
from tests.controlplane.waiting import until

QUIET = ("retry: 2000", ": still here")
HANG_SECONDS = 15
"""Less than a viewer that reads no more would be waited for."""
SCOPE = {
    "type": "http",
    "asgi": {"spec_version": "2.3"},
    "http_version": "1.1",
    "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
    "method": "GET",
    "path": "/decisions/stream",
    "raw_path": b"",
    "query_string": b"",
    "root_path": "",
}


@asynccontextmanager
async def watching(client: httpx.AsyncClient, decisions: DecisionLog, query: str = "") -> AsyncIterator[list[str]]:
    """The events of a stream, once the feed was ended at the end of the block."""
    seen: list[str] = []
    stream = asyncio.create_task(client.get(f"/decisions/stream{query}"))
    await until(lambda: len(decisions.feed) == 1)
    yield seen
    decisions.feed.end()
    answer = await stream
    assert answer.headers["content-type"].startswith("text/event-stream")
    seen += [event for event in answer.text.split("\n\n") if event and event not in QUIET]
    assert len(decisions.feed) == 0


async def test_a_viewer_sees_what_it_asked_for_from_then_on(client: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.record(make_record(1, model="a"))
    async with watching(client, decisions, "?model=a&tenant=acme") as seen:
        for number, model in enumerate("aba", start=2):
            decisions.record(make_record(number, model=model))
    kind, name, data = zip(*(event.split("\n") for event in seen), strict=True)
    assert set(kind) == {"event: decision"}
    assert name == ("id: d2", "id: d4")
    told = json.loads(data[0].removeprefix("data: "))
    assert told == (await client.get("/decisions/d2")).json()


async def test_what_a_slow_viewer_misses_is_counted_and_told(
    client: httpx.AsyncClient, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_feed, "QUEUE", 2)
    async with watching(client, decisions) as seen:
        for number in range(5):
            decisions.record(make_record(number))
    assert seen[0] == 'event: dropped\ndata: {"decisions": 3}'
    assert [event.split("\n")[1] for event in seen[1:]] == ["id: d3", "id: d4"]


async def test_a_decision_is_shown_to_all_viewers_and_written_out_once(
    client: httpx.AsyncClient, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written out for each, it would take the gateway's event loop 0.2 ms a viewer."""
    made: list[str] = []
    event = decision_stream._event

    def counted(record: DecisionRecord) -> bytes:
        made.append(record.id)
        return event(record)

    monkeypatch.setattr(decision_stream, "_event", counted)
    viewers = [asyncio.create_task(client.get("/decisions/stream")) for _ in range(3)]
    await until(lambda: len(decisions.feed) == 3)
    decisions.record(make_record(1))
    decisions.feed.end()
    assert len({(await one).text for one in viewers}) == 1
    assert made == ["d1"]


async def test_a_quiet_stream_has_heartbeats(
    client: httpx.AsyncClient, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_stream, "HEARTBEAT_SECONDS", 0.001)
    beats = asyncio.Event()
    take = decision_feed.Viewer.take

    async def noted(self: decision_feed.Viewer, *, seconds: float) -> object:
        taken = await take(self, seconds=seconds)
        beats.set()
        return taken

    monkeypatch.setattr(decision_feed.Viewer, "take", noted)
    stream = asyncio.create_task(client.get("/decisions/stream"))
    await beats.wait()
    decisions.feed.end()
    assert ": still here" in (await stream).text


async def test_there_are_only_so_many_viewers(
    client: httpx.AsyncClient, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_feed, "MAX_VIEWERS", 1)
    async with watching(client, decisions):
        assert_problem(await client.get("/decisions/stream"), 503)


async def test_who_may_look_no_more_is_cut_off(
    client: httpx.AsyncClient, decisions: DecisionLog, doorkeeper: Doorkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision_stream, "HEARTBEAT_SECONDS", 0.001)
    monkeypatch.setattr(decision_stream, "CHECK_SECONDS", 0)
    stream = asyncio.create_task(client.get("/decisions/stream"))
    await until(lambda: len(decisions.feed) == 1)
    doorkeeper.away = True
    asked = len(doorkeeper.asked)
    await until(lambda: len(doorkeeper.asked) > asked + 1)  # that nobody can tell ends nothing
    doorkeeper.away, doorkeeper.forbidden = False, True
    async with asyncio.timeout(HANG_SECONDS):
        assert (await stream).status_code == 200
    assert len(decisions.feed) == 0
    assert {one.verb for one in doorkeeper.asked} == {"watch"}


async def test_a_viewer_that_leaves_before_the_answer_has_begun_leaves_no_place_taken(
    app: FastAPI, decisions: DecisionLog
) -> None:
    async def gone() -> Message:
        return {"type": "http.disconnect"}

    async def full(_message: Message) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(HANG_SECONDS):
        await app(dict(SCOPE), gone, full)
    assert len(decisions.feed) == 0


async def test_a_viewer_that_reads_no_more_leaves_no_place_taken(
    app: FastAPI, decisions: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "SEND_SECONDS", 0.001)

    async def silent() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def full(message: Message) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with asyncio.timeout(HANG_SECONDS):
        await app(dict(SCOPE), silent, full)
    assert len(decisions.feed) == 0


async def test_a_viewer_that_comes_at_the_end_is_let_go(client: httpx.AsyncClient, decisions: DecisionLog) -> None:
    decisions.feed.end()
    assert (await client.get("/decisions/stream")).text == "retry: 2000\n\n"


async def test_times_make_no_sense_for_what_is_to_come(client: httpx.AsyncClient) -> None:
    assert_problem(await client.get("/decisions/stream?since=2027-01-01T00:00:00Z"), 422)
