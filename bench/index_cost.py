"""What only ours can be asked: queries beside a writer at full speed, churn, snapshots, and where the twin ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Final

import cachefleet_native

from bench.index_beside import beside_rows
from bench.index_memory import churn
from bench.index_sides import Ours
from bench.index_work import Work, synthetic
from bench.rows import Row, percentile
from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_core.blocks import unpack_keys
from cachefleet_core.reports import Stored

ROUNDS: Final = 5


def own_rows(blocks: int) -> Iterator[Row]:
    yield from beside_rows()
    yield alone("resident memory after 100M of 1M blocks went and came back, against before", churn(), "x")
    yield from snapshot(blocks)
    yield from twin()


def alone(name: str, value: float, unit: str) -> Row:
    return {"row": name, "ours": value, "peer": None, "ratio": None, "unit": unit}


def snapshot(blocks: int) -> Iterator[Row]:
    side = filled(synthetic(workers=64, prompt_blocks=512, blocks=blocks))
    written, read = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        data = side.index.snapshot()
        written.append(time.perf_counter() - start)
        other = cachefleet_native.Index(max_held=1 << 27)
        start = time.perf_counter()
        other.restore(data)
        read.append(time.perf_counter() - start)
        if other.stats()[0] != side.index.stats()[0]:
            raise ValueError("a snapshot holds something else")
    yield alone(f"snapshot of {blocks / 1e6:g}M blocks, write", median(written), "s")
    yield alone(f"snapshot of {blocks / 1e6:g}M blocks, to ready", median(read), "s")


def twin() -> Iterator[Row]:
    """The Python twin at 64 workers: what one core of it stores and answers."""
    work = synthetic(workers=64, prompt_blocks=512, blocks=300_000)
    index, names = PythonIndex(), [WorkerId(f"w{number}") for number in range(64)]
    start = time.process_time()
    for chain in work.chains:
        index.apply(names[chain.worker], Stored(chain.parent, chain.keys))
    yield alone("Python twin, store, 64 workers", (time.process_time() - start) / work.blocks * 1e9, "ns CPU/block")
    waited = []
    for query in work.queries:
        keys = unpack_keys(query.keys)
        begun = time.perf_counter_ns()
        index.match(keys, names)
        waited.append((time.perf_counter_ns() - begun) / 1e3)
    yield alone("Python twin, query p50, 512 blocks, 64 workers", percentile(waited, 50), "us")


def filled(work: Work) -> Ours:
    side = Ours(work)
    for chain in work.chains:
        side.apply(side.stored(chain))
    return side
