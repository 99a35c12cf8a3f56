"""Mixed requests with random thresholds, clients that leave and live policies; then refusals on the idle engine.

python -m bench.load
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp

from bench import rows
from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.load import audit, inconsistencies, preemptions, put_under_load, refusal_seconds, settled
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

REQUESTS: Final = 2000
REFUSALS: Final = 200
WARM_REFUSALS: Final = 10
PLUGIN: Final = VllmOptions(plugin=True, forked=False)


def run(*, requests: int = REQUESTS) -> list[rows.Row]:
    """The rows of this part. RuntimeError where a request went wrong or something leaked."""
    with (
        tempfile.TemporaryDirectory() as name,
        running_vllm(PLUGIN, tiny_model_path(), Path(name) / "vllm.log") as server,
    ):
        return asyncio.run(_measured(server, requests))


async def _measured(server: VllmServer, requests: int) -> list[rows.Row]:
    async with aiohttp.ClientSession() as session:
        side = Side(server.url, server.events_endpoint, server.replay_endpoint, server.headers, session)
        before, began = await settled(side), time.perf_counter()
        report = await put_under_load(side, requests)
        seconds = time.perf_counter() - began
        after, preempted = await settled(side), await preemptions(side)
        wrong = [*report.wrong, *inconsistencies(await audit(side))]
        if after["blocks_free"] != before["blocks_free"]:
            wrong.append(f"{before['blocks_free'] - after['blocks_free']} blocks leaked")
        if wrong:
            raise RuntimeError(f"{len(wrong)} went wrong, the first: {wrong[0]}")
        await refusal_seconds(side, WARM_REFUSALS, seed=1)
        refused = [1000 * taken for taken in await refusal_seconds(side, REFUSALS)]
    return [
        rows.row("mixed requests answered whole", report.answered, unit="requests"),
        rows.row("of clients that left", report.left, unit="requests"),
        rows.row("choices of them refused or handed back", report.finished["cache_threshold"], unit="choices"),
        rows.row("requests handed back", after["counts"].get("handed_back", 0), unit="requests"),
        rows.row("preemptions", preempted, unit=""),
        rows.row("mixed requests", requests / seconds, unit="requests/s"),
        rows.row("wrong, unanswered or leaked", 0, unit=""),
        rows.row("refused on an idle engine, median", rows.median(refused)),
        rows.row("refused on an idle engine, largest", max(refused)),
    ]


if __name__ == "__main__":
    for row in run():
        print(row)
