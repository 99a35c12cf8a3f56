"""Recorded conversations on three workers of real vLLM, through the whole of cachefleet, policy by policy.

    python -m bench.replay_real             # about ten minutes on two cores

``cachefleet up`` starts three workers of 512 blocks (320 of them for idle prefixes) with a tiny model on the CPU. Nine
conversations are under way at a time, each waiting for its answer before it goes on. Every policy sees the same
conversations with other tokens, so that nothing of an earlier run is found in a cache. *Random* asks the workers
themselves, without the gateway. The ideal is one LRU cache as large as all three together, asked for the very ids the
engines were asked for, in the order in which they were sent.

Before anything is reported: every request was answered whole, and no engine served more than its prompt has. Rows go
to bench/results/replay_real.json. Three engines share the cores, so that times say little; the hit ratio is the row.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import aiohttp

from bench.bars import Bar
from bench.replay_real_work import BLOCK, OUTPUT_TOKENS, Conversation, agent_sessions, chats
from bench.rows import Row, percentile, reported, row
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until

RESULTS: Final = Path(__file__).parent / "results" / "replay_real.json"
CLIENTS: Final = 9
WORKERS: Final = 3
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: replay}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  replicas: 3
  engine: {maxModelLen: 6000, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 502}
  prefixCache: {budgetMiB: 5}
"""
RANDOM: Final = "random"
POLICIES: Final = ("leastLoaded", RANDOM, "roundRobin", "cacheAware")
BARS: Final = (Bar("replay", r"beside ideal", "ratio", 0.80, at_least=True),)

Ids = Sequence[int]


class UnsoundError(Exception):
    """An answer was not what it has to be; nothing is reported."""


@dataclass(slots=True)
class Run:
    """One policy's: what was sent, in order, and what came of it. ``cached`` and ``prompts`` in tokens."""

    policy: str
    prompts: list[Ids] = field(default_factory=list)
    cached: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def usable(self) -> int:
        """Blocks that a cache could serve."""
        return sum((len(ids) - 1) // BLOCK for ids in self.prompts)

    @property
    def hit_ratio(self) -> float:
        return self.cached / BLOCK / self.usable


class Replayer:
    """Sends conversations to a fleet."""

    def __init__(self, fleet: Up, session: aiohttp.ClientSession) -> None:
        self._fleet = fleet
        self._session = session
        self._chance = random.Random(1)
        self._workers = [worker["url"] for worker in fleet.workers()]
        secrets = fleet.data_dir / "secrets"
        self._worker_key = (secrets / "default_replay.worker-key").read_text().strip()
        self._admin_token = (secrets / "admin.token").read_text().strip()

    @property
    def blocks(self) -> int:
        """Of all workers' caches together."""
        return sum(worker["load"]["blocksTotal"] for worker in self._fleet.workers())

    async def run(self, policy: str, conversations: Sequence[Conversation]) -> Run:
        """UnsoundError where an answer is not whole."""
        await self._follow(policy)
        run, left = Run(policy), iter(conversations)

        async def client() -> None:
            for conversation in left:
                for body in conversation:
                    await self._ask(run, body)

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return run

    async def _follow(self, policy: str) -> None:
        if policy == RANDOM:
            return
        headers = {"authorization": f"Bearer {self._admin_token}"}
        url = f"{self._fleet.internal}/admin/v1/routing"
        async with self._session.put(url, json={"policy": policy}, headers=headers) as answer:
            answer.raise_for_status()

    async def _ask(self, run: Run, body: dict[str, Any]) -> None:
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        sent = {"model": "tiny", "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "return_token_ids": True} | body
        place, began = len(run.prompts), time.perf_counter()
        run.prompts.append(())
        url, headers = self._target(run.policy)
        async with self._session.post(url + path, json=sent, headers=headers) as answer:
            said = await answer.json()
        if answer.status != 200 or said["usage"]["completion_tokens"] != OUTPUT_TOKENS:
            raise UnsoundError(f"{run.policy}: {answer.status} {said}")
        run.seconds.append(time.perf_counter() - began)
        ids = body.get("prompt") or said["prompt_token_ids"]
        cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached >= len(ids) or cached % BLOCK:
            raise UnsoundError(f"{run.policy}: {cached} tokens of {len(ids)} from cache")
        run.prompts[place] = ids
        run.cached += cached

    def _target(self, policy: str) -> tuple[str, dict[str, str]]:
        if policy != RANDOM:
            return self._fleet.gateway, {}
        return self._chance.choice(self._workers), {"authorization": f"Bearer {self._worker_key}"}


def ideal_ratio(prompts: Sequence[Ids], blocks: int) -> float:
    """The hit ratio of one least-recently-used cache of so many blocks."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = usable = 0
    for ids in prompts:
        keys = list(_chain(ids))
        can = (len(ids) - 1) // BLOCK
        usable += can
        hits += next((place for place, key in enumerate(keys[:can]) if key not in held), can)
        for key in reversed(keys):  # of a chain the end goes first
            held[key] = None
            held.move_to_end(key)
        while len(held) > blocks:
            held.popitem(last=False)
    return hits / usable


def _chain(ids: Ids) -> Iterator[int]:
    key = 0
    for start in range(0, len(ids) - BLOCK + 1, BLOCK):
        key = hash((key, *ids[start : start + BLOCK]))
        yield key


def rows(name: str, runs: Sequence[Run], blocks: int) -> Iterator[Row]:
    """The cache-aware run beside the ideal and every other."""
    ours = runs[-1]
    yield row(f"{name}: block hit ratio, beside ideal", ours.hit_ratio, ideal_ratio(ours.prompts, blocks), unit="share")
    for other in runs[:-1]:
        yield row(f"{name}: block hit ratio, beside {other.policy}", ours.hit_ratio, other.hit_ratio, unit="share")
    for other in runs[:-1]:
        for what, of in (("mean", fmean), ("p99", lambda values: percentile(values, 99))):
            told = f"{name}: time to answer, {what}, beside {other.policy}"
            yield row(told, of(ours.seconds), of(other.seconds), unit="s")


async def measured(fleet: Up, most: int, some: int) -> list[Row]:
    """Rows of both workloads; ``most`` requests of a session, ``some`` chats."""
    loads: tuple[tuple[str, Callable[[str], list[Conversation]]], ...] = (
        ("agent sessions", lambda policy: agent_sessions(policy, most=most)),
        ("tau-bench chats", lambda policy: chats(policy, most=some)),
    )
    found: list[Row] = []
    connector = aiohttp.TCPConnector(force_close=True)  # a worker may close an idle connection as it is used again
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        replayer = Replayer(fleet, session)
        for name, load in loads:
            runs = []
            for policy in POLICIES:
                run = await replayer.run(policy, load(f"{name} {policy}"))
                print(f"{name}: {policy:<12} {len(run.prompts)} requests, hit ratio {run.hit_ratio:.3f}", flush=True)
                runs.append(run)
            found += [_judged(one) for one in rows(name, runs, replayer.blocks)]
    return found


def _judged(one: Row) -> Row:
    for bar in BARS:
        if bar.pattern in one["row"]:
            return {**one, "bar": str(bar), "kept": bar.holds(one[bar.column])}
    return one


def replay(folder: Path, *, most: int, some: int) -> list[Row]:
    """A fleet from its start to its end. UnsoundError, FileNotFoundError."""
    agent_sessions("", most=1)
    pool = folder / "pool.yaml"
    pool.write_text(POOL)
    with running_up(pool, folder, forked=False) as fleet:
        until(lambda: fleet.live(WORKERS), READY_SECONDS, "whole")
        return asyncio.run(measured(fleet, most, some))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, metavar="N", default=14, help="of each of the 30 sessions (14)")
    parser.add_argument("--chats", type=int, metavar="N", default=40, help="of the 150 chats (40)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cachefleet-replay-") as folder:
        try:
            found = replay(Path(folder), most=given.requests, some=given.chats)
        except (UnsoundError, FileNotFoundError) as error:
            sys.exit(f"{error}")
    reported(found, RESULTS)


if __name__ == "__main__":
    main()
