"""The demo's access to the engines: token counters, and resets of prefix caches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from cachefleet_local.cli.admin_client import AdminClient
from cachefleet_local.cli_errors import FailureError
from cachefleet_local.demo.report import EngineCounts
from cachefleet_local.fleet.processes import WorkerPlan

PROMPT_TOKENS: Final = "vllm:prompt_tokens_total"
CACHED_TOKENS: Final = "vllm:prefix_cache_hits_total"
EMPTY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


class Engines:
    """The engines of all workers; ``key`` is their API key."""

    def __init__(self, session: aiohttp.ClientSession, workers: Sequence[WorkerPlan], *, model: str, key: str) -> None:
        self._session = session
        self._workers = workers
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"}

    async def counts(self) -> EngineCounts:
        """The token counters now, summed over all workers."""
        texts = await asyncio.gather(*(self._metrics(worker) for worker in self._workers))
        sums = [(total(text, PROMPT_TOKENS), total(text, CACHED_TOKENS)) for text in texts]
        return EngineCounts(sum(prompt for prompt, _ in sums), sum(cached for _, cached in sums))

    async def clear(self, admin: AdminClient) -> None:
        """Empty every engine's prefix cache and wait until the index holds no block. FailureError where one stays.

        vLLM reports a reset in its next step only, so each engine is given a step: a prompt too short to be cached.
        """
        for worker in self._workers:
            reset = await self._post(worker, "/reset_prefix_cache", {})
            if not reset.get("success"):
                raise FailureError([f"{worker.name} did not empty its prefix cache: {reset}"])
            await self._post(worker, "/v1/completions", {"model": self._model, "prompt": "a", "max_tokens": 1})
        try:
            async with asyncio.timeout(EMPTY_SECONDS):
                while await held_blocks(admin):  # noqa: ASYNC110 - the index is another process's
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise FailureError([f"the index still holds {await held_blocks(admin)} blocks of empty caches"]) from error

    async def _metrics(self, worker: WorkerPlan) -> str:
        async with self._session.get(f"{worker.engine_url}/metrics") as response:
            response.raise_for_status()
            return await response.text()

    async def _post(self, worker: WorkerPlan, path: str, body: dict[str, object]) -> dict[str, object]:
        async with self._session.post(f"{worker.engine_url}{path}", json=body, headers=self._headers) as response:
            response.raise_for_status()
            return dict(await response.json())


async def held_blocks(admin: AdminClient) -> int:
    """Number of blocks that the index holds for all workers."""
    return sum(worker["heldBlocks"] for worker in (await asyncio.to_thread(admin.get, "workers"))["items"])


def total(metrics: str, name: str) -> int:
    """The sum of a counter's samples in the Prometheus text format."""
    samples = (sample for family in text_string_to_metric_families(metrics) for sample in family.samples)
    return round(sum(sample.value for sample in samples if sample.name == name))
