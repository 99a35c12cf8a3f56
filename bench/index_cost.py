"""What only ours can be asked: queries beside a writer at full speed, churn, and where the twin ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.index_beside import beside_rows
from bench.index_memory import churn
from bench.index_work import synthetic
from bench.rows import Row, percentile
from cachefleet_controlplane.index.protocol import WorkerId
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_core.block_keys import unpack_keys
from cachefleet_core.report_frames import Stored


def own_rows() -> Iterator[Row]:
    yield from beside_rows()
    yield alone("resident memory after 100M of 1M blocks went and came back, against before", churn(), "x")
    yield from twin()


def alone(name: str, value: float, unit: str) -> Row:
    return {"row": name, "ours": value, "peer": None, "ratio": None, "unit": unit}


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
