"""Token ids in memory to a chosen worker: one native call against Dynamo's selection service in the same process.

The service has 64 workers and an index that holds nothing, as it is filled over sockets alone: that favours it. One of
ours holds the whole prompt, which is the longest walk.
"""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import cachefleet_native

from bench import index_sides
from bench.rows import Row
from cachefleet_core.block_keys import Namespace, namespace_secrets
from cachefleet_core.report_frames import Phase, State

TOKENS: Final = 8192
BLOCK: Final = 16
WORKERS: Final = 64
ROUNDS: Final = 200
_STATE: Final = State(sequence=0, digest=0, held=0, phase=Phase.READY, running=0, waiting=0)


def select_row() -> Row:
    return asyncio.run(_measured())


async def _measured() -> Row:
    listed = [random.Random(2).randrange(150_000) for _ in range(TOKENS)]
    ours, service = _ours(listed), await _service()
    request = {"model_name": "m", "token_ids": listed}
    if ours().first != WORKERS - 1 or (await service.select(request))["effective_prefill_tokens"] != TOKENS:
        raise ValueError("wrong worker")
    mine, theirs = [], []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        ours()
        between = time.perf_counter_ns()
        await service.select(request)
        theirs.append(time.perf_counter_ns() - between)
        mine.append(between - start)
    service.shutdown()
    figures = median(mine) / 1e3, median(theirs) / 1e3
    name = "8k tokens to chosen worker of 64, against SelectionService"
    return {"row": name, "ours": figures[0], "peer": figures[1], "ratio": figures[1] / figures[0], "unit": "us"}


def _ours(listed: list[int]) -> Callable[[], Any]:
    keyer = cachefleet_native.Keyer(namespace_secrets(b"k" * 32, Namespace("bench")), BLOCK)
    index, plane, rows = cachefleet_native.Index(), cachefleet_native.Plane(), []
    packed = array("I", listed).tobytes()
    keys = keyer.packed_ids(packed)
    for number in range(WORKERS):
        index.store(f"w{number}", 0, keys[: len(keys) // 8 * (number + 1) // WORKERS * 8], 0)
        row = plane.row()
        row.reported(_STATE, suspended=False, leaving=False, now=0.0)
        row.follow(reported=True, heard_at=0.0, out_of_step_at=None)
        row.stand(ready=True, differs=False, batched_tokens=2048, free_percent=0)
        rows.append((row, f"w{number}", f"w{number}", 0))
    table = cachefleet_native.WorkerTable(plane, rows)
    return lambda: table.choose(index, keyer.packed_ids(packed), 0.0, TOKENS, BLOCK, 528, "cost")


async def _service() -> Any:
    service = index_sides.dynamo().SelectionService(indexer_threads=1)
    for number in range(WORKERS):
        worker = {
            "worker_id": number,
            "model_name": "m",
            "block_size": BLOCK,
            "endpoint": f"http://127.0.0.1:{9000 + number}",
            "data_parallel_start_rank": 0,
            "data_parallel_size": 1,
            "kv_events_endpoints": {0: f"tcp://127.0.0.1:{19000 + number}"},
            "max_num_batched_tokens": 2048,
            "total_kv_blocks": 100_000,
        }
        await service.upsert_worker(worker)
    return service
