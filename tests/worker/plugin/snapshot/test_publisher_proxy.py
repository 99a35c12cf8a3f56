"""What stands between scheduler and publisher, with a publisher that only remembers."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from cachefleet_worker.agent.engines.vllm.events.kv_events import decode_batch
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.snapshot.event_batches import BlockRemoved, BlockStored
from cachefleet_worker.plugin.snapshot.publisher_proxy import HEARTBEAT, SNAPSHOT, Copies, PublisherProxy
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger, Total

BOOT = "b" * 32


@dataclass
class Batch:
    events: list[Any]
    ts: float = 0.0
    data_parallel_rank: int | None = None


@dataclass
class Inner:
    """Numbers what it is given, as vLLM's publisher does."""

    batches: list[Any] = field(default_factory=list)
    closed: bool = False

    def publish(self, batch: Any) -> None:
        if self.closed:
            raise RuntimeError("closed")
        self.batches.append(batch)

    def shutdown(self) -> None:
        self.closed = True

    def get_publisher_config(self) -> str:
        return "config"


class Pool:
    """The pool's table, where a hash may stand for several blocks; whole hashes are pairs of (hash, group)."""

    medium = "GPU"

    def __init__(self) -> None:
        self.copies: dict[tuple[int, int], int] = {}
        self.queue: list[Any] = []
        self.cached_block_hash_to_block = self

    def get_one_block(self, whole: tuple[int, int]) -> object | None:
        return object() if self.copies.get(whole) else None

    def store(self, block_hash: int, group: int = 0) -> None:
        self.copies[block_hash, group] = self.copies.get((block_hash, group), 0) + 1
        self.queue.append(stored(block_hash, group))

    def evict(self, block_hash: int, group: int = 0) -> None:
        self.copies[block_hash, group] -= 1
        self._emit_block_removed_events([(block_hash, group)])

    def _emit_block_removed_events(self, whole_hashes: list[tuple[int, int]]) -> None:
        self.queue += [BlockRemoved([block_hash], self.medium, group) for block_hash, group in whole_hashes]

    def take(self) -> Batch:
        events, self.queue = self.queue, []
        return Batch(events)


class OtherPool(Pool):
    """What the pool becomes when another feature gives it a class of its own."""

    evictions = 0

    def _emit_block_removed_events(self, whole_hashes: list[tuple[int, int]]) -> None:
        self.evictions += len(whole_hashes)
        super()._emit_block_removed_events(whole_hashes)


class Bench:
    def __init__(self, *, copies: bool = True) -> None:
        self.pool = Pool()
        self.inner = Inner()
        self.capabilities = Capabilities()
        self.capabilities.add(SNAPSHOT, "thread")
        self.faults = Faults(self.capabilities)
        self.ledger = ResidentLedger()
        kept = Copies(self.pool, lambda whole: whole) if copies else None
        self.proxy = PublisherProxy(self.inner, self.ledger, self.faults, boot=BOOT, copies=kept)

    def publish(self) -> list[Any]:
        """End the step; what of it went out."""
        before = len(self.inner.batches)
        self.proxy.publish(self.pool.take())
        return [event for batch in self.inner.batches[before:] for event in batch.events]

    @property
    def kept(self) -> set[tuple[int, Any]]:
        return self.ledger.device_hashes()


def stored(block_hash: int, group: int = 0) -> BlockStored:
    return BlockStored([block_hash], None, [1], 1, None, "GPU", None, group_idx=group)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_batches_are_counted_as_they_are_numbered(bench: Bench) -> None:
    assert bench.proxy.point().sequence == -1
    for number in range(3):
        bench.pool.store(number)
        bench.publish()
    bench.proxy.heartbeat()
    point = bench.proxy.point()
    assert point.sequence == len(bench.inner.batches) - 1 == 3
    assert point.blocks == 3
    assert point.totals == [Total(0, 3, 3)]


def test_a_removal_waits_for_the_last_copy(bench: Bench) -> None:
    for _ in range(3):
        bench.pool.store(7)
    bench.publish()
    for _ in range(2):
        bench.pool.evict(7)
        assert bench.publish() == []
        assert bench.kept == {(0, 7)}
    bench.pool.evict(7)
    assert bench.publish() == [BlockRemoved([7], "GPU", 0)]
    assert bench.kept == set()
    assert bench.proxy.held_back == 2
    assert bench.proxy.sequence == 1
    assert bench.proxy._copies is not None
    assert not bench.proxy._copies._removed


def test_a_copy_in_another_group_is_another_block(bench: Bench) -> None:
    bench.pool.store(7, 0)
    bench.pool.store(7, 1)
    bench.pool.evict(7, 1)
    bench.publish()
    assert bench.kept == {(0, 7)}


def test_what_left_and_came_back_in_one_step_is_there(bench: Bench) -> None:
    bench.pool.store(7)
    bench.publish()
    bench.pool.evict(7)
    bench.pool.store(7)
    assert bench.publish() == [stored(7)]
    assert bench.kept == {(0, 7)}


def test_removals_in_other_media_pass(bench: Bench) -> None:
    bench.pool.store(7)
    bench.pool.store(7)
    bench.publish()
    bench.pool.evict(7)
    others = [BlockRemoved([7], "CPU", 0), BlockRemoved([7], "GPU", 0, locality="REMOTE")]
    bench.pool.queue += others
    assert bench.publish() == others


def test_a_pool_given_another_class_later_keeps_both(bench: Bench) -> None:
    bench.pool.__class__ = OtherPool
    bench.pool.store(7)
    bench.pool.store(7)
    bench.pool.evict(7)
    assert bench.publish() == [stored(7), stored(7)]
    assert isinstance(bench.pool, OtherPool)
    assert bench.pool.evictions == 1


def test_without_the_hook_every_removal_is_published() -> None:
    bench = Bench(copies=False)
    bench.pool.store(7)
    bench.pool.store(7)
    bench.pool.evict(7)
    assert BlockRemoved([7], "GPU", 0) in bench.publish()
    assert bench.kept == set()


def test_a_fault_leaves_the_stream_as_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.pool.store(7)
    bench.publish()
    monkeypatch.setattr(bench.pool, "get_one_block", None)
    bench.pool.store(8)
    bench.pool.evict(7)
    assert bench.publish() == [stored(8), BlockRemoved([7], "GPU", 0)]
    assert bench.capabilities.mode(SNAPSHOT) == "off"
    bench.pool.evict(8)
    assert bench.publish() == [BlockRemoved([8], "GPU", 0)]
    bench.proxy.heartbeat()
    assert bench.inner.batches[-1].mark.totals is None
    assert bench.proxy.sequence == len(bench.inner.batches) - 1


def test_after_a_fault_nothing_is_noted_any_more(bench: Bench) -> None:
    bench.proxy._faults.off("snapshot", "test")
    copies = bench.proxy._copies
    bench.proxy.publish(Batch([stored(1)]))
    bench.pool._emit_block_removed_events([(1, 0)])
    assert copies is not None
    assert copies._removed == []


def test_an_event_that_the_ledger_cannot_take_is_published_all_the_same(bench: Bench) -> None:
    odd = stored(7)
    odd.block_hashes = 5  # type: ignore[assignment]
    bench.pool.queue.append(odd)
    assert bench.publish() == [odd]
    assert bench.faults.counts[SNAPSHOT] == 1


def test_what_the_publisher_raises_is_raised_and_not_counted(bench: Bench) -> None:
    bench.proxy.shutdown()
    bench.pool.store(7)
    with pytest.raises(RuntimeError, match="closed"):
        bench.publish()
    assert bench.proxy.sequence == -1
    assert bench.kept == set()


def test_everything_else_is_the_publishers(bench: Bench) -> None:
    assert bench.proxy.get_publisher_config() == "config"
    with pytest.raises(AttributeError):
        bench.proxy.no_such_thing  # noqa: B018 (asking is the test)


def test_a_heartbeat_is_an_empty_batch_to_a_reader_who_does_not_know_it(bench: Bench) -> None:
    class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[msgspec.Raw]
        data_parallel_rank: int | None = None

    bench.pool.store(7)
    bench.publish()
    bench.proxy.heartbeat()
    payload = msgspec.msgpack.encode(bench.inner.batches[-1])
    assert msgspec.msgpack.decode(payload, type=EventBatch).events == []
    assert decode_batch(payload).events == []
    assert msgspec.msgpack.decode(payload)[3] == {"boot": BOOT, "totals": [[0, 1, 7]]}


def test_heartbeats_come_by_themselves_until_the_end(bench: Bench) -> None:
    bench.proxy.start_heartbeats(0.01)
    deadline = time.monotonic() + 5
    while len(bench.inner.batches) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    bench.proxy.shutdown()
    sent = len(bench.inner.batches)
    time.sleep(0.05)
    assert len(bench.inner.batches) == sent
    assert bench.faults.counts[HEARTBEAT] == 0


def test_a_heartbeat_that_fails_is_the_last(bench: Bench) -> None:
    bench.inner.closed = True
    bench.proxy.start_heartbeats(0.01)
    assert bench.proxy._thread is not None
    bench.proxy._thread.join(5)
    assert bench.faults.counts[HEARTBEAT] == 1
    assert bench.capabilities.mode(HEARTBEAT) == "off"


def test_moments_and_heartbeats_are_exact_while_batches_are_published(bench: Bench) -> None:
    """Each mark's totals are those of the batches before it."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            bench.proxy.heartbeat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        for number in range(2000):
            bench.pool.store(number)
            bench.publish()
    finally:
        stop.set()
        thread.join()
    blocks = total = 0
    for batch in bench.inner.batches:
        if isinstance(batch, Batch):
            blocks, total = blocks + 1, total + batch.events[0].block_hashes[0]
        elif blocks:
            assert batch.mark.totals == [Total(0, blocks, total)]
    assert bench.proxy.point().sequence == len(bench.inner.batches) - 1
