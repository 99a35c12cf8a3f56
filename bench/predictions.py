"""Cached tokens as predicted at each decision beside those that real vLLM served, in spite of evictions and a kill.

    python -m bench.predictions                          # a plain model, about ten minutes on two cores
    python -m bench.predictions --model gemma            # one with sliding windows: several KV cache groups
    python -m bench.predictions --budget 40 --fresh 600  # caches of twenty times what is in flight

``cachefleet up`` starts two workers with a tiny model on the CPU, whose caches hold a small part of what is asked.
Clients send random conversations that go on, fork and step back. Halfway the engine of one worker is killed; its
requests in flight are answered by the other. Afterwards every request's record is read by the admin API.

Before anything is reported: every request was answered whole and has its record, blocks were evicted, an engine was
killed. Points are percent of all prompt tokens. *Apart* counts a request that was served more than predicted and one
that was served less as two errors; *together* they may make up for each other, as in a hit ratio. A
prediction counts what a worker has reported, and what requests ahead of this one leave there; the error *by reports
alone* is that of the first part. What was served less is told by its cause, what was served beyond by whether a request
that was over had computed it there lately (*under way*).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.bars import Bar
from bench.rows import Row, row, row_text
from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.fleet import READY_SECONDS, Up, running_up, until
from e2e.engine.windowed_models import made

RESULTS: Final = Path(__file__).parent / "results"
PLAIN: Final = "plain"
REQUESTS: Final = 10_000
CLIENTS: Final = 8
WORKERS: Final = 2
KNOWN: Final = 400
"""Conversations that may go on, of the smallest caches and turns."""
BUDGET: Final = 5
"""MiB of each worker for idle blocks: with eight clients a third of all that is cached is under way."""
MOST_BUDGET: Final = 256
FRESH: Final = 200
"""Tokens that a turn adds, at most."""
LONGEST: Final = 1_500
"""Tokens of a prompt, at most."""
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {{name: predictions}}
spec:
  model: {{name: tiny, source: {source}, weightsMiB: 2, kvBytesPerToken: {kv_bytes}}}
  replicas: 2
  engine: {{maxModelLen: 2000, dtype: float32, extraArgs: {arguments}}}
  device: {{resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: {floor}}}
  prefixCache: {{budgetMiB: {budget}}}
"""
KV_BYTES: Final = {PLAIN: 512, "gemma": 1536}
"""Of a token."""
FLOOR: Final = 507
"""MiB that leave 3 MiB of both models' cache for running requests, less those for idle blocks."""

BARS: Final = {PLAIN: Bar("predictions", r"apart", "ours", 0.005), "gemma": Bar("predictions", r"apart", "ours", 0.5)}
"""Points; 0.00 as it is printed."""


class UnsoundError(Exception):
    """An answer was not whole, a record is missing or nothing was evicted; nothing is reported."""


class Conversations:
    """Random prompts of token ids that go on after an earlier one and its answer, fork from it or begin anew."""

    def __init__(self, seed: int, known: int = KNOWN, fresh: int = FRESH) -> None:
        self._chance = random.Random(seed)
        self._most, self._fresh = known, fresh
        self._known: list[list[int]] = [[]]

    def prompt(self) -> list[int]:
        before = self._chance.choice(self._known)
        kept = before if self._chance.random() < 0.7 else before[: self._chance.randrange(len(before) + 1)]
        fresh = [self._chance.randrange(300, 1500) for _ in range(self._chance.randrange(1, self._fresh))]
        return fresh if len(kept) + len(fresh) > LONGEST else kept + fresh

    def answered(self, conversation: list[int]) -> None:
        self._known = [*self._known, conversation][-self._most :]


@dataclass(frozen=True)
class Load:
    """What is asked of the fleet, of which each worker has ``budget`` MiB for idle blocks."""

    requests: int
    clients: int
    budget: int = BUDGET
    fresh: int = FRESH

    @property
    def known(self) -> int:
        """Conversations that may go on: so many that caches of any size hold about the same share of them."""
        return max(1, KNOWN * self.budget * FRESH // (BUDGET * self.fresh))

    @property
    def title(self) -> str:
        """What tells its rows from those of the smallest caches."""
        return f"{self.requests:,} requests" + (f", {self.budget} MiB" if self.budget != BUDGET else "")


class Asking:
    """Clients of a fleet; the first of the second half kills an engine."""

    def __init__(self, fleet: Up, session: aiohttp.ClientSession, load: Load) -> None:
        self._fleet, self._session = fleet, session
        self._left, self._half = load.requests, load.requests // 2
        self._conversations = Conversations(1, load.known, load.fresh)

    async def all(self, clients: int) -> None:
        """UnsoundError where an answer is not whole."""
        await asyncio.gather(*(self._client() for _ in range(clients)))

    async def _client(self) -> None:
        while self._left:
            self._left -= 1
            if self._left == self._half:
                self._fleet.engine(self._fleet.workers()[0]["name"]).kill()
            if self._left % 1000 == 0:
                print(f"{self._left} requests to go", flush=True)
            await self._ask()

    async def _ask(self) -> None:
        prompt = self._conversations.prompt()
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "ignore_eos": True, "return_token_ids": True}
        async with self._session.post(f"{self._fleet.gateway}/v1/completions", json=body) as answer:
            said = await answer.json()
        if answer.status != 200 or said["usage"]["completion_tokens"] != 4:
            raise UnsoundError(f"{answer.status} {said}")
        self._conversations.answered(prompt + said["choices"][0]["token_ids"])


async def asked(fleet: Up, load: Load) -> None:
    """Have the fleet answer so many. UnsoundError."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        await Asking(fleet, session, load).all(load.clients)


def records(fleet: Up) -> list[dict[str, Any]]:
    """Those of all requests, by the admin API."""
    token = (fleet.data_dir / "secrets" / "admin.token").read_text().strip()
    url = f"{fleet.internal}/admin/v1/decisions/export"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"})  # noqa: S310 - ours
    with urllib.request.urlopen(request, timeout=600) as answer:  # noqa: S310 - ours
        return [json.loads(one) for one in answer]


def rows(model: str, found: Sequence[dict[str, Any]], asked_for: str) -> list[Row]:
    """What was predicted beside what was served, with the bar of such a model."""
    prompts = sum(one["promptTokens"] for one in found)
    less = sum(max(0, one["predictedTokens"] - one["cachedTokens"]) for one in found)
    more = sum(max(0, one["cachedTokens"] - one["predictedTokens"]) for one in found)
    alone = sum(abs(one["cachedTokens"] - _chosen(one, "predictedTokens")) for one in found)
    lately = [max(one["predictedTokens"], _chosen(one, "expectedTokens")) for one in found]
    late = sum(max(0, one["cachedTokens"] - known) for one, known in zip(found, lately, strict=True))
    shares = [100 * sum(one[name] for one in found) / prompts for name in ("predictedTokens", "cachedTokens")]
    title = f"{model}, {asked_for}"
    apart = row(f"{title}: error, apart", 100 * (less + more) / prompts, unit="points")
    bar = BARS[model]
    return [
        row(f"{title}: predicted, beside served", *shares, unit="% of prompt tokens"),
        apart | {"bar": str(bar), "kept": bar.holds(apart["ours"])},
        row(f"{title}: error, together", abs(shares[0] - shares[1]), unit="points"),
        row(f"{title}: error by reports alone, apart", 100 * alone / prompts, unit="points"),
        row(f"{title}: served less than predicted", 100 * less / prompts, unit="points"),
        *(
            row(f"{title}: served less, {cause}", 100 * tokens / prompts, unit="points")
            for cause, tokens in sorted(_causes(found).items())
        ),
        row(f"{title}: served more than predicted", 100 * more / prompts, unit="points"),
        row(f"{title}: served more, under way", 100 * (more - late) / prompts, unit="points"),
    ]


def _causes(found: Sequence[dict[str, Any]]) -> Counter[str]:
    """Tokens served less, by cause; "untold" where a record names none."""
    causes: Counter[str] = Counter()
    for one in found:
        if (less := one["predictedTokens"] - one["cachedTokens"]) > 0:
            causes[one["shortfall"]["cause"] if one["shortfall"] else "untold"] += less
    return causes


def _chosen(record: dict[str, Any], name: str) -> int:
    """A number of the candidate that answered; 0 where the record has no such candidate."""
    return next((one[name] for one in record["candidates"] if one["worker"] == record["worker"]), 0)


def checked(found: Sequence[dict[str, Any]], requests: int) -> Sequence[dict[str, Any]]:
    """The records. UnsoundError where some are missing or the cache was never full."""
    if len(found) != requests:
        raise UnsoundError(f"{len(found)} records of {requests} requests")
    if not any(lost["cause"] == "evicted" for one in found for lost in one["lost"]):
        raise UnsoundError("nothing that was asked for again had been evicted")
    return found


def predictions(model: str, folder: Path, load: Load) -> list[Row]:
    """A fleet from its start to its end. UnsoundError."""
    plain = model == PLAIN
    source = "cachefleet/tiny" if plain else str(made(model, tiny_model_path(), folder))
    arguments = json.dumps([] if plain else ["--load-format=dummy"])
    pool = folder / "pool.yaml"
    sizes = {"kv_bytes": KV_BYTES[model], "budget": load.budget, "floor": FLOOR - load.budget}
    pool.write_text(POOL.format(source=source, arguments=arguments, **sizes))
    with running_up(pool, folder, forked=False) as fleet:
        until(lambda: fleet.live(WORKERS), READY_SECONDS, "whole")
        asyncio.run(asked(fleet, load))
        until(lambda: len(records(fleet)) >= load.requests, 60, "recorded")
        return rows(model, checked(records(fleet), load.requests), load.title)


def bounded(least: int, most: int) -> Callable[[str], int]:
    """Reads a number of an option. ArgumentTypeError outside of the bounds."""

    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: not a number from {least:,} to {most:,}")
        return int(text)

    return read


NUMBERS: Final = {
    "--requests": ("in all", 2, 1_000_000, REQUESTS),
    "--clients": ("at a time", 1, 64, CLIENTS),
    "--budget": ("MiB of each worker for idle blocks", BUDGET, MOST_BUDGET, BUDGET),
    "--fresh": ("tokens that a turn adds, at most", 2, LONGEST, FRESH),
}
"""What each is, its bounds and default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(KV_BYTES), default=PLAIN, help="plain, or with sliding windows")
    for name, (what, least, most, default) in NUMBERS.items():
        words = f"{what} ({least:,} to {most:,}; {default:,})"
        parser.add_argument(name, type=bounded(least, most), metavar="N", default=default, help=words)
    given = parser.parse_args()
    load = Load(given.requests, given.clients, given.budget, given.fresh)
    with tempfile.TemporaryDirectory(prefix="cachefleet-predictions-") as folder:
        try:
            found = predictions(given.model, Path(folder), load)
        except UnsoundError as error:
            sys.exit(f"{error}")
    for one in found:
        print(row_text(one))
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"predictions_{given.model}{'' if load.budget == BUDGET else f'_{load.budget}'}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {os.path.relpath(path)}")


if __name__ == "__main__":
    main()
