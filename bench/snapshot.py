"""What a snapshot of 50,000 blocks costs: its own time, and how much longer a step beside it takes; no server.

    python -m bench.snapshot

The engine's process is one core here: a thread that steps, half of the time in the interpreter, and the snapshot's
thread. The reader is another process, as the API server is. Every snapshot is decoded and counted.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from bench.rows import Row, percentile, row
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.snapshot.event_batches import BlockStored, Header
from cachefleet_worker.plugin.snapshot.publisher_proxy import PublisherProxy
from cachefleet_worker.plugin.snapshot.resident_ledger import ResidentLedger
from cachefleet_worker.plugin.snapshot.snapshot import SnapshotCall, Snapshots

BLOCK_SIZE: Final = 16
CHAIN: Final = 50
BLOCKS: Final = 1000 * CHAIN
WALL_SECONDS: Final = 1.0
LONGER_MS: Final = 5.0
STEPS: Final = 1000
ROUNDS: Final = 5
"""Snapshots taken while the engine steps; the slowest counts, and all steps beside them."""

READER: Final = """
import socket, sys, time
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
connection, _ = listener.accept()
with open(sys.argv[2], "wb") as out:
    while chunk := connection.recv(262144):
        out.write(chunk)
        ended = time.monotonic()
print(ended, flush=True)
"""


class _Inner:
    """Where published batches go: nowhere."""

    def publish(self, batch: Any) -> None:
        pass


class _Engine:
    """The plugin's side of an engine with a full ledger, and what stands for the engine's own thread."""

    def __init__(self) -> None:
        numbers = random.Random(7)
        self._events = [_stored(numbers) for _ in range(BLOCKS // CHAIN)]
        capabilities = Capabilities()
        capabilities.add("snapshot", "thread")
        faults = Faults(capabilities)
        ledger = ResidentLedger()
        self._proxy = PublisherProxy(_Inner(), ledger, faults, boot="b" * 32)
        state = SimpleNamespace(
            boot="b" * 32, rank=0, faults=faults, settings=PluginSettings(), counts={"snapshots": 0}, publish_events=int
        )
        self.snapshots = Snapshots(cast("Any", state), self._proxy, ledger)

    def fill(self) -> float:
        """Microseconds that the ledger takes for a block."""
        start = time.perf_counter()
        for event in self._events:
            self._proxy.publish(SimpleNamespace(events=[event]))
        return (time.perf_counter() - start) / BLOCKS * 1e6

    def step(self, ask: Path | None = None) -> float:
        """Milliseconds of a step of about 4, after whatever is asked of the engine between steps."""
        start = time.perf_counter()
        if ask is not None:
            self.snapshots.start(msgspec.msgpack.encode(SnapshotCall(str(ask))))
        sum(number * number for number in range(15_000))
        time.sleep(0.002)
        return (time.perf_counter() - start) * 1e3


def _stored(numbers: random.Random) -> BlockStored:
    hashes: list[int | bytes] = [numbers.getrandbits(64) for _ in range(CHAIN)]
    tokens = [numbers.randrange(150_000) for _ in range(CHAIN * BLOCK_SIZE)]
    return BlockStored(
        hashes, None, tokens, BLOCK_SIZE, None, "GPU", None, [None] * CHAIN, 0, kv_cache_spec_kind="full_attention"
    )


def run() -> list[Row]:
    """Rows: a snapshot's wall time, how much longer steps beside it are, what the ledger costs."""
    with _one_core(), tempfile.TemporaryDirectory() as folder:
        engine = _Engine()
        ledger_us = engine.fill()
        quiet = [engine.step() for _ in range(STEPS)]
        rounds = [_snapshot(engine, Path(folder)) for _ in range(ROUNDS)]
    wall = max(seconds for seconds, _ in rounds)
    beside = [step for _, steps in rounds for step in steps]
    longer = percentile(beside, 99) - percentile(quiet, 99)
    return [
        _bar(row(f"snapshot of {BLOCKS} blocks while the engine steps, wall", wall, unit="s"), WALL_SECONDS),
        _bar(row("engine step p99 while it is taken, longer by", longer), LONGER_MS),
        row("engine step p99 while it is taken, against without", percentile(beside, 99), percentile(quiet, 99)),
        row("engine step longest while it is taken, against without", max(beside), max(quiet)),
        row("ledger, for a block stored", ledger_us, unit="us"),
    ]


def _bar(measured: Row, limit: float) -> Row:
    return {**measured, "bar": f"≤ {limit:g}", "kept": measured["ours"] <= limit}


@contextmanager
def _one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _snapshot(engine: _Engine, folder: Path) -> tuple[float, list[float]]:
    """Seconds until its reader has all of one, and the milliseconds of the steps meanwhile."""
    address, content = folder / "socket", folder / "content"
    everywhere = os.sched_getaffinity(os.getppid())
    reader = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", READER, str(address), str(content)], stdout=subprocess.PIPE, text=True
    )
    os.sched_setaffinity(reader.pid, everywhere)
    assert reader.stdout is not None
    with reader, reader.stdout as said:
        assert said.readline() == "listening\n"
        start = time.monotonic()
        steps = [engine.step(address)]
        while reader.poll() is None:
            steps.append(engine.step())
        seconds = float(said.readline()) - start
    _check(content.read_bytes())
    address.unlink()
    return seconds, steps


def _check(body: bytes) -> None:
    """Everything is in it, once."""
    frames: list[bytes] = []
    at = 0
    while length := int.from_bytes(body[at : at + 4], "little"):
        frames.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    assert at + 4 == len(body)
    assert msgspec.msgpack.decode(frames[0], type=Header).blocks == BLOCKS
    batch = tuple[float, list[BlockStored], int]
    events = [event for frame in frames[1:] for event in msgspec.msgpack.decode(frame, type=batch)[1]]
    assert len({block_hash for event in events for block_hash in event.block_hashes}) == BLOCKS
    assert sum(len(event.token_ids) for event in events) == BLOCKS * BLOCK_SIZE


if __name__ == "__main__":
    for each in run():
        print(each)
