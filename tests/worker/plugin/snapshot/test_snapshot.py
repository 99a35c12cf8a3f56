"""Snapshots from a copy of the ledger to who reads them, over real sockets, and what keeps them in bounds."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.plugin.asgi import HttpError, Response
from cachefleet_worker.plugin.engine_calls import EngineCallError
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.snapshot import snapshot
from cachefleet_worker.plugin.snapshot.event_batches import BlockStored, Header
from cachefleet_worker.plugin.snapshot.snapshot import Snapshots, install
from cachefleet_worker.plugin.snapshot.snapshot_relay import (
    MEDIA_TYPE,
    SnapshotRefusedError,
    snapshot_frames,
    snapshot_response,
)


class Inner:
    def __init__(self) -> None:
        self.batches: list[Any] = []

    def publish(self, batch: Any) -> None:
        self.batches.append(batch)

    def shutdown(self) -> None:
        pass


class NullEventPublisher(Inner):
    """Named as vLLM's."""


class Pool:
    """As much of a block pool as is asked."""

    num_gpu_blocks = 64
    cached_block_hash_to_block = SimpleNamespace(_cache={})


class Side(EngineState):
    """Publishes without vLLM's own kind of batch."""

    def publish_events(self) -> None:
        events = self.scheduler.kv_cache_manager.take_events()
        if events:
            self.scheduler.kv_event_publisher.publish(SimpleNamespace(events=events))


class Engine:
    """A side with a made-up scheduler, and the API server's way to it."""

    def __init__(self, publisher: Inner | None = None, **settings: Any) -> None:
        self.publisher = publisher or Inner()
        self.pending: list[Any] = []
        manager = SimpleNamespace(block_pool=Pool(), take_events=self._take)
        self.scheduler = SimpleNamespace(kv_cache_manager=manager, kv_event_publisher=self.publisher)
        self.state = Side(self.scheduler, PluginSettings(**settings), rank=2)
        self.snapshots = install(self.scheduler, self.state)

    def _take(self) -> list[Any]:
        events, self.pending = self.pending, []
        return events

    def store(self, first: int, count: int) -> None:
        hashes: list[int | bytes] = list(range(first, first + count))
        self.pending.append(BlockStored(hashes, None, list(range(count * 2)), 2, None, "GPU", None, None, 0))

    async def one(self, rank: int, name: str, payload: bytes = b"") -> Any:
        if rank != 2:
            raise EngineCallError("rank: there is none")
        await asyncio.sleep(0)
        return msgspec.msgpack.decode(self.state.call(name, payload))

    @property
    def running(self) -> Snapshots:
        assert self.snapshots is not None
        return self.snapshots

    def wait(self) -> None:
        """Until the thread of the last snapshot has ended."""
        thread = self.running._thread
        assert thread is not None
        thread.join(10)
        assert not thread.is_alive()


@pytest.fixture
def engine() -> Engine:
    return Engine(heartbeat_seconds=1000.0)


async def whole(engine: Engine, seconds: float = 30.0) -> list[bytes]:
    """The frames of a snapshot, the last one's absence being an error."""
    body = b"".join([chunk async for chunk in snapshot_frames(engine, 2, timeout_seconds=seconds)])
    frames = []
    while length := int.from_bytes(body[:4], "little"):
        frames.append(body[4 : 4 + length])
        body = body[4 + length :]
    assert body == b"\0\0\0\0"
    return frames


def hashes(frames: list[bytes]) -> list[Any]:
    events = [event for frame in frames for event in decode_batch(frame).events]
    return [block_hash for event in events for block_hash in getattr(event, "block_hashes", [])]


async def test_a_snapshot_is_a_header_and_batches_of_all_there_is(engine: Engine) -> None:
    engine.store(1, 1000)
    first, *rest = await whole(engine)
    header = msgspec.msgpack.decode(first, type=Header)
    assert (header.boot, header.rank, header.sequence, header.blocks) == (engine.state.boot, 2, 0, 1000)
    assert [total.blocks for total in header.totals] == [1000]
    assert sorted(hashes(rest)) == list(range(1, 1001))
    assert len(rest) == 4
    assert len(engine.publisher.batches) == 1  # what was pending went out before it was counted


async def test_an_engine_that_has_published_nothing_gives_an_empty_one(engine: Engine) -> None:
    [first] = await whole(engine)
    assert msgspec.msgpack.decode(first, type=Header).sequence == -1


async def test_what_happens_meanwhile_is_not_in_it(engine: Engine) -> None:
    engine.store(1, 2000)
    frames = snapshot_frames(engine, 2, timeout_seconds=10.0)
    body = await anext(frames)
    engine.store(5000, 2000)
    engine.state.publish_events()
    body += b"".join([chunk async for chunk in frames])
    await asyncio.to_thread(engine.wait)
    assert len(body) < len(b"".join(await whole(engine)))
    await asyncio.to_thread(engine.wait)
    assert engine.state.counts["snapshots"] == 2


async def test_one_at_a_time(engine: Engine) -> None:
    engine.store(1, 50_000)
    frames = snapshot_frames(engine, 2, timeout_seconds=10.0)
    await anext(frames)
    with pytest.raises(SnapshotRefusedError) as refused:
        await whole(engine)
    assert refused.value.busy
    response = await snapshot_response(engine, {"rank": "2"}, timeout_seconds=10.0)
    assert response.status == 429
    assert (b"retry-after", b"1") in response.headers
    async for _ in frames:
        pass
    await asyncio.to_thread(engine.wait)
    await whole(engine)


async def test_a_reader_that_goes_away_ends_the_thread(engine: Engine) -> None:
    engine.store(1, 50_000)
    frames = snapshot_frames(engine, 2, timeout_seconds=10.0)
    await anext(frames)
    await frames.aclose()  # type: ignore[attr-defined]
    await asyncio.to_thread(engine.wait)
    assert engine.state.counts["snapshots_unread"] == 1
    assert engine.state.capabilities.mode("snapshot") == "thread"
    await whole(engine)


def test_a_reader_that_stops_reading_ends_the_thread(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "STALLED_SECONDS", 0.1)
    engine.store(1, 100_000)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        engine.running.start(msgspec.msgpack.encode(snapshot.SnapshotCall(str(tmp_path / "s"))))
        engine.wait()
    assert engine.state.counts["snapshots_unread"] == 1


async def test_nobody_at_the_address_ends_the_thread(engine: Engine, tmp_path: Path) -> None:
    engine.running.start(msgspec.msgpack.encode(snapshot.SnapshotCall(str(tmp_path / "nobody"))))
    engine.wait()
    assert engine.state.counts["snapshots_unread"] == 1


async def test_a_snapshot_that_takes_too_long_is_broken_off(tmp_path: Path) -> None:
    engine = Engine(heartbeat_seconds=1000.0, snapshot_timeout_seconds=0.05)
    engine.store(1, 100_000)
    with pytest.raises(AssertionError):
        await whole(engine)
    await asyncio.to_thread(engine.wait)
    assert engine.state.counts["snapshots_unread"] == 1


async def test_an_engine_that_never_connects_is_a_timeout(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.running, "_start", lambda _: snapshot.SnapshotCallResult(started=True))
    with pytest.raises(TimeoutError):
        await whole(engine, 0.1)
    with pytest.raises(HttpError, match="in time") as failed:
        await snapshot_response(engine, {"rank": "2"}, timeout_seconds=0.1)
    assert failed.value.status == 504


async def test_a_fault_while_encoding_switches_snapshots_off_and_nothing_else(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.store(1, 10)
    monkeypatch.setattr(snapshot, "batches", lambda *_, **__: iter([None]))
    with pytest.raises(AssertionError):
        await whole(engine)
    await asyncio.to_thread(engine.wait)
    assert engine.state.capabilities.mode("snapshot") == "off"
    with pytest.raises(HttpError, match="off after a fault") as failed:
        await snapshot_response(engine, {"rank": "2"}, timeout_seconds=1.0)
    assert failed.value.status == 503
    engine.store(20, 1)
    engine.state.publish_events()
    assert len(engine.publisher.batches) == 2


@pytest.mark.parametrize("rank", ["x", "-1", "1.5", "99999", "²"])
async def test_a_rank_that_is_no_number_is_refused(engine: Engine, rank: str) -> None:
    with pytest.raises(HttpError) as failed:
        await snapshot_response(engine, {"rank": rank}, timeout_seconds=1.0)
    assert (failed.value.status, failed.value.code) == (400, "bad_rank")


async def test_a_rank_that_is_not_there_is_the_engines_error(engine: Engine) -> None:
    with pytest.raises(EngineCallError):
        await snapshot_response(engine, {}, timeout_seconds=1.0)


async def test_the_answer_streams_all_of_it(engine: Engine) -> None:
    engine.store(1, 300)
    response = await snapshot_response(engine, {"rank": "2"}, timeout_seconds=10.0)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await response.send(send)
    assert isinstance(response, Response)
    assert (b"content-type", MEDIA_TYPE.encode()) in sent[0]["headers"]
    assert b"".join(message.get("body", b"") for message in sent).endswith(b"\0\0\0\0")


def test_an_engine_without_events_has_no_snapshots() -> None:
    engine = Engine(NullEventPublisher())
    assert engine.snapshots is None
    assert engine.scheduler.kv_event_publisher is engine.publisher
    assert engine.state.capabilities.mode("snapshot") == engine.state.capabilities.mode("heartbeat") == "off"
    assert "snapshot" not in engine.state.calls


def test_switched_off_by_hand_nothing_is_in_between() -> None:
    engine = Engine(plugin_off=frozenset({"snapshot"}))
    assert engine.scheduler.kv_event_publisher is engine.publisher
    assert engine.state.capabilities.mode("snapshot") == "off"


def test_heartbeats_alone_can_be_switched_off(engine: Engine) -> None:
    other = Engine(plugin_off=frozenset({"heartbeat"}), heartbeat_seconds=0.01)
    time.sleep(0.05)
    assert other.publisher.batches == []
    assert (other.state.capabilities.mode("snapshot"), other.state.capabilities.mode("heartbeat")) == ("thread", "off")
    assert engine.state.capabilities.mode("heartbeat") == "mark"


def test_a_pool_without_the_place_known_says_so(engine: Engine) -> None:
    [feature] = [each for each in engine.state.capabilities.document() if each.feature == "snapshot"]
    assert "not held back" in feature.reason


def test_stats_tell_the_sequence(engine: Engine) -> None:
    assert engine.running.stats() == {"sequence": -1, "removals_held_back": 0}
    engine.store(1, 1)
    engine.state.publish_events()
    assert engine.running.stats()["sequence"] == 0


def test_slices_leave_the_interpreter_to_others() -> None:
    """Another thread gets on between slices, and the rests are as long as the slices."""
    done = threading.Event()
    count = 0

    def work() -> None:
        nonlocal count
        while not done.is_set():
            count += 1

    def slices() -> Any:
        for _ in range(20):
            end = time.perf_counter() + 0.002
            while time.perf_counter() < end:
                pass
            yield b""

    thread = threading.Thread(target=work)
    thread.start()
    start = time.perf_counter()
    assert len(list(snapshot.rested(slices()))) == 20
    elapsed = time.perf_counter() - start
    done.set()
    thread.join()
    assert elapsed > 20 * 0.004
    assert count > 0
