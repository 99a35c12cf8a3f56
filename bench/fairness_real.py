"""A flood on real vLLM: what a tenant with many requests under way does to one that asks now and then.

    python -m bench.fairness_real               # about six minutes on two cores
    python -m bench.fairness_real --seconds 60  # longer runs, steadier percentiles
    python -m bench.fairness_real --stream      # answers as streams: a prompt is known to be computed

``cachefleet up`` starts one worker with a tiny model on the CPU, once for each order of waiting: by shares alone, with
little sent ahead (``admission.maxAheadSeconds``), and with at most two answers to a tenant under way while others are
there (``admission.sharedRequests``), on which the bar is. A quiet tenant asks one request after the other, with a pause
between; a noisy one has none, two or many under way at a time (*alone*, *2 at a time*, *24 at a time*). No prompt is
asked for twice. Tenants are named by the header of the Gateway API Inference Extension, so no keys are needed.

Before anything is timed, both tenants have the same greedy answer to the same prompt, and each answer that is timed
has the tokens that it has to have. Engine, clients and control plane share the machine's cores: compare the columns of
one run, and take no time for a fleet's. Rows go to bench/results/fairness_real.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.bars import Bar
from bench.rows import Row, percentile, reported, row
from e2e.engine.fleet import READY_SECONDS, running_up, until

RESULTS: Final = Path(__file__).parent / "results" / "fairness_real.json"
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: fair}}
spec:
  model: {{name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}}
  replicas: 1
  engine: {{maxModelLen: 6000, dtype: float32}}
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 502}}
  prefixCache: {{budgetMiB: 2}}
  admission: {{maxQueueSeconds: 300, {admission}}}
"""
TENANT_HEADER: Final = "x-gateway-inference-fairness-id"
PROMPT_TOKENS: Final = 1500
OUTPUTS: Final = 8
PAUSE_SECONDS: Final = 0.1
"""Of the quiet tenant after each answer, at most; 0 at least."""
LEAST: Final = 20
"""Requests of the quiet tenant in each run, however long they take."""
DEMANDS: Final = {"alone": 0, "2 at a time": 2, "24 at a time": 24}
"""Requests that the noisy tenant has under way."""
FLOOD: Final = "24 at a time"
MODEST: Final = "2 at a time"
SHARED: Final = "shares, 2 beside others"
ORDERS: Final = {"shares": "", "shares, ahead": "maxAheadSeconds: 0.05", SHARED: "sharedRequests: 2"}
"""``admission`` of the pool by the name of the order."""
BAR: Final = Bar("fairness", rf"{FLOOD} beside {MODEST}", "ratio", 1.10)


class UnsoundError(Exception):
    """An answer was not what it has to be; nothing is reported."""


@dataclass(slots=True)
class Run:
    """One demand of the noisy tenant: the quiet one's seconds to its answers, and all tenants' answers a second."""

    seconds: list[float] = field(default_factory=list)
    answers: int = 0
    rate: float = 0.0


class Clients:
    """Both tenants before one gateway."""

    def __init__(self, gateway: str, session: aiohttp.ClientSession, *, stream: bool = False) -> None:
        self._url = f"{gateway}/v1/completions"
        self._session = session
        self._stream = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        self._chance = random.Random(1)

    async def check(self) -> None:
        """UnsoundError where tenants are not given the same answer."""
        prompt = self._prompt()
        texts = {(await self._answer(tenant, prompt))["choices"][0]["text"] for tenant in ("quiet", "noisy", "quiet")}
        if len(texts) != 1:
            raise UnsoundError(f"one prompt has {len(texts)} greedy answers")

    async def run(self, noisy: int, *, seconds: float) -> Run:
        """Ask for so long, while the noisy tenant has so many requests under way. UnsoundError."""
        run = Run()
        flood = [asyncio.create_task(self._again("noisy", run)) for _ in range(noisy)]
        await asyncio.sleep(2 if noisy else 0)
        try:
            began, run.answers = time.perf_counter(), 0
            while time.perf_counter() - began < seconds or len(run.seconds) < LEAST:
                run.seconds.append(await self._ask("quiet", run))
                await asyncio.sleep(self._chance.uniform(0, PAUSE_SECONDS))
            run.rate = run.answers / (time.perf_counter() - began)
        finally:
            await _ended(flood)
        return run

    async def _again(self, tenant: str, run: Run) -> None:
        while True:
            await self._ask(tenant, run)

    async def _ask(self, tenant: str, run: Run) -> float:
        prompt, began = self._prompt(), time.perf_counter()
        await self._answer(tenant, prompt)
        run.answers += 1
        return time.perf_counter() - began

    async def _answer(self, tenant: str, prompt: list[int]) -> dict[str, Any]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUTS, "ignore_eos": True, "temperature": 0}
        headers = {TENANT_HEADER: tenant}
        async with self._session.post(self._url, json=body | self._stream, headers=headers) as answer:
            said = _whole(await answer.text()) if self._stream and answer.status == 200 else await answer.json()
        usage = said.get("usage", {})
        if answer.status != 200 or (usage["prompt_tokens"], usage["completion_tokens"]) != (PROMPT_TOKENS, OUTPUTS):
            raise UnsoundError(f"{tenant}: {answer.status} {said}")
        return said

    def _prompt(self) -> list[int]:
        return [self._chance.randrange(300, 1500) for _ in range(PROMPT_TOKENS)]


def _whole(stream: str) -> dict[str, Any]:
    """The answer that a stream's events tell."""
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: {")]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return {**events[-1], "choices": [{"text": text}]}


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks that go on for ever; UnsoundError where one had failed before."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            raise UnsoundError(f"the flood broke off: {found}") from found


async def asked(gateway: str, seconds: float, *, stream: bool) -> dict[str, Run]:
    """A run for each demand. UnsoundError."""
    connector = aiohttp.TCPConnector(force_close=True)  # a worker may close an idle connection as it is used again
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        clients = Clients(gateway, session, stream=stream)
        await clients.check()
        return {demand: await clients.run(noisy, seconds=seconds) for demand, noisy in DEMANDS.items()}


def rows(order: str, runs: dict[str, Run]) -> Iterator[Row]:
    """The quiet tenant's median and slowest hundredth while the other floods, beside its other demands."""
    name, flooded = f"real vLLM: {order}", runs[FLOOD]
    for other in (MODEST, "alone"):
        for share in (50, 99):
            title = f"{name}: p{share} of another's answer, {FLOOD} beside {other}"
            found = row(title, percentile(flooded.seconds, share), percentile(runs[other].seconds, share), unit="s")
            judged = order == SHARED and other == MODEST and share == 99
            yield {**found, "bar": str(BAR), "kept": BAR.holds(found["ratio"])} if judged else found
    title = f"{name}: answers of all a second, {FLOOD} beside {MODEST}"
    yield row(title, flooded.rate, runs[MODEST].rate, unit="answers/s")
    yield row(f"{name}: requests of the quiet tenant, {FLOOD}", len(flooded.seconds), unit="requests")


def measured(seconds: float, *, stream: bool) -> Iterator[Row]:
    """A fleet for each order, from its start to its end. UnsoundError."""
    for order, admission in ORDERS.items():
        with tempfile.TemporaryDirectory(prefix="cachefleet-fairness-") as folder:
            pool = Path(folder) / "pool.yaml"
            pool.write_text(POOL.format(admission=admission))
            with running_up(pool, Path(folder), forked=False) as fleet:
                until(lambda fleet=fleet: fleet.live(1), READY_SECONDS, "whole")  # type: ignore[misc]
                found = asyncio.run(asked(fleet.gateway, seconds, stream=stream))
        yield from rows(order, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each of the nine runs, 1 to 3600 (20)")
    parser.add_argument("--stream", action="store_true", help="answers as streams (whole ones)")
    given = parser.parse_args()
    if not 1 <= given.seconds <= 3600:
        parser.error("--seconds must be from 1 to 3600")
    reported(measured(given.seconds, stream=given.stream), RESULTS)


if __name__ == "__main__":
    main()
