from __future__ import annotations

import asyncio

import pytest

from cachefleet_core.hit_rule import HitRule
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Delta, Hello, Phase, Snapshot, State, decode_up
from cachefleet_worker.agent.blocks.block_events import BlockRemoved, BlockStored
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.load_meter import Load
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports import stream as stream_module
from cachefleet_worker.agent.reports.feed import Feed
from cachefleet_worker.agent.reports.stream import Stream, WorkerState
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY
from tests.worker.agent.receiver import Receiver


def make_stream(epoch: str = "e", rank: int = 0) -> Stream:
    contract = IndexContract(weights="w", tokenizer="t", block_size=BLOCK_SIZE)
    hello = Hello(worker="w", pool="a/b", rank=rank, epoch=epoch, endpoint="http://x", contract=contract)
    return Stream(hello, Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE))


def ready(_rank: int) -> WorkerState:
    return WorkerState(Phase.READY, Load())


def make_feed() -> Feed:
    return Feed(AgentMetrics())


def store(stream: Stream, number: int, blocks: int = 1) -> None:
    hashes = [number * 1000 + i for i in range(blocks)]
    tokens = [number, *range(2, 2 * blocks + 1)]
    stream.residents.apply([BlockStored(list(hashes), None, tokens, BLOCK_SIZE)])


def test_of_all_ranks_the_greatest_share_removed_since_the_last_flush_counts() -> None:
    feed, streams = make_feed(), {rank: make_stream(rank=rank) for rank in range(2)}
    assert feed.removed() == 0
    feed.begin(streams, ready)
    for stream in streams.values():
        store(stream, 1, blocks=4)
    streams[0].residents.apply([BlockRemoved([1003], "GPU")])
    assert feed.removed() == 1 / 4
    streams[1].residents.apply([BlockRemoved([1002, 1003], "GPU")])
    assert feed.removed() == 2 / 4
    feed.flush()
    assert feed.removed() == 0


def received(frames: list[bytes]) -> Receiver:
    receiver = Receiver()
    for frame in map(decode_up, frames):
        if isinstance(frame, Snapshot):
            receiver.apply(frame.chains)
        elif isinstance(frame, Delta):
            receiver.apply(frame.operations)
        elif isinstance(frame, State):
            assert frame.digest == receiver.digest
            assert frame.held == len(receiver.held)
    return receiver


async def test_a_stream_begins_again_where_events_tell_another_rule() -> None:
    """A stock engine's: its second group is learnt from its first event."""
    feed, stream = make_feed(), make_stream()
    feed.begin({0: stream}, ready)
    outbox = feed.attach(max_frames=100, max_bytes=10**6)
    assert [type(decode_up(frame)) for frame in await outbox.take()] == [Hello, Snapshot, State]
    store(stream, 1, blocks=2)
    feed.flush()
    assert [type(decode_up(frame)) for frame in await outbox.take()] == [Delta]
    sliding = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 3}
    stream.residents.apply([BlockStored([1001], None, [1, 2, 3, 4], BLOCK_SIZE, **sliding)])  # type: ignore[arg-type]
    feed.flush()
    frames = await outbox.take()
    hello, _, _ = map(decode_up, frames)
    assert isinstance(hello, Hello)
    assert (hello.rule, hello.epoch) == (HitRule(windows=(1,)), "e")
    assert len(received(frames).held) == 3
    odd = {"group_idx": 2, "kv_cache_spec_kind": "chunked_local_attention"}
    stream.residents.apply([BlockStored([1001], None, [1, 2], BLOCK_SIZE, **odd)])  # type: ignore[arg-type]
    feed.flush()
    frames = await outbox.take()
    hello = decode_up(frames[0])
    assert isinstance(hello, Hello)
    assert "KV cache group 2" in hello.not_indexed
    assert not received(frames).held


def test_deltas_are_numbered_without_a_break() -> None:
    stream = make_stream()
    assert stream.deltas() == []
    for number in (1, 2):
        store(stream, number)
        [frame] = [decode_up(frame) for frame in stream.deltas()]
        assert isinstance(frame, Delta)
        assert frame.sequence == number


def test_large_changes_and_snapshots_are_cut_into_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "MAX_FRAME_KEYS", 10)
    monkeypatch.setattr(stream_module, "MAX_FRAME_OPERATIONS", 3)
    stream = make_stream()
    for number in range(12):
        store(stream, number, blocks=4)
    deltas = [decode_up(frame) for frame in stream.deltas()]
    assert [frame.sequence for frame in deltas if isinstance(frame, Delta)] == list(range(1, 7))
    parts = [decode_up(frame) for frame in stream.snapshot()]
    assert [(p.part, p.last, p.sequence) for p in parts if isinstance(p, Snapshot)] == [
        (i, i == 5, 6) for i in range(6)
    ]
    assert received(stream.snapshot()).digest == stream.residents.digest


def test_an_empty_snapshot_is_one_part() -> None:
    [frame] = [decode_up(frame) for frame in make_stream().snapshot()]
    assert isinstance(frame, Snapshot)
    assert (frame.part, frame.last, frame.chains) == (0, True, ())


async def test_an_outbox_opens_with_everything_and_goes_on_with_changes() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=10, max_bytes=10_000)
    stream = make_stream()
    store(stream, 1)
    feed.begin({0: stream}, ready)
    opening = await outbox.take()
    assert [type(decode_up(frame)) for frame in opening] == [Hello, Snapshot, State]
    store(stream, 2)
    feed.publish_state()
    more = await outbox.take()
    assert [type(decode_up(frame)) for frame in more] == [Delta, State]
    assert received([*opening, *more]).digest == stream.residents.digest


async def test_before_the_first_epoch_there_is_nothing_to_say() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=10, max_bytes=10_000)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(outbox.take(), 0.05)
    feed.begin({0: make_stream()}, ready)
    assert isinstance(decode_up((await outbox.take())[0]), Hello)


async def test_an_overflow_begins_again_with_a_snapshot() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=3, max_bytes=10_000)
    stream = make_stream()
    feed.begin({0: stream}, ready)
    await outbox.take()
    for number in range(20):
        store(stream, number)
        feed.flush()
    frames = await outbox.take()
    assert [type(decode_up(frame)) for frame in frames] == [Hello, Snapshot, State]
    assert received(frames).digest == stream.residents.digest
    store(stream, 99)
    feed.publish_state()
    assert received([*frames, *await outbox.take()]).digest == stream.residents.digest


async def test_bytes_are_bounded_too() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=1000, max_bytes=100)
    stream = make_stream()
    feed.begin({0: stream}, ready)
    await outbox.take()
    for number in range(5):
        store(stream, number)
        feed.flush()
    assert isinstance(decode_up((await outbox.take())[0]), Hello)


async def test_a_resync_adds_a_snapshot_at_the_present_number() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=100, max_bytes=10_000)
    first, second = make_stream(), make_stream(rank=1)
    feed.begin({0: first, 1: second}, ready)
    await outbox.take()
    store(first, 1)
    store(second, 1)
    outbox.resync(1)
    outbox.resync(7)  # no such rank
    frames = [decode_up(frame) for frame in await outbox.take()]
    assert [(type(frame), getattr(frame, "rank", None)) for frame in frames] == [(Delta, 0), (Delta, 1), (Snapshot, 1)]
    assert isinstance(frames[2], Snapshot)
    assert frames[2].sequence == second.sequence == 1


async def test_a_new_epoch_replaces_what_was_queued() -> None:
    feed = make_feed()
    outbox = feed.attach(max_frames=100, max_bytes=10_000)
    old, new = make_stream("old"), make_stream("new")
    feed.begin({0: old}, ready)
    await outbox.take()
    store(old, 1)
    feed.flush()
    feed.begin({0: new}, ready)
    frames = [decode_up(frame) for frame in await outbox.take()]
    assert isinstance(frames[0], Hello)
    assert frames[0].epoch == "new"
    assert [type(frame) for frame in frames] == [Hello, Snapshot, State]


def test_a_state_says_whether_the_engine_has_blocks_without_a_key() -> None:
    """Without that word no engine is ever found to serve from a cache that the index does not know."""
    stream = make_stream()
    for medium, unkeyed in (("GPU", False), ("elsewhere", True)):
        stored = BlockStored([len(medium)], None, list(range(BLOCK_SIZE)), BLOCK_SIZE, medium=medium)
        stream.residents.apply([stored])
        said = decode_up(stream.state(ready(0)))
        assert isinstance(said, State)
        assert said.unkeyed is unkeyed
