"""The control plane under load for ten minutes, while workers die and return.

    python -m bench.soak                  # ten minutes
    python -m bench.soak --seconds 60     # one; memory is judged from four on

A control plane before three fake engines with real agents, each a process of its own. First capacity is measured, with
more and more requests at once; then 80 % of it is asked for, of every API, streamed and whole, while every twenty
seconds or so a worker is killed with SIGKILL, half of the time with its agent, and returns some seconds later. Its pool
goes on to call it ready, so that only the gateway can know. Every answer is checked to be whole, to the character.

It fails where a request fails, but for streams that nobody else could have gone on with and whose worker died after
their first byte; where memory, file descriptors, threads or tasks of the control plane (one for each request under way
aside) go on growing over the last two thirds; and where anything is left open at the end. Rows go to
bench/results/soak.json. SOAK_SECONDS is how long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from bench.parts import Running, plane
from bench.rows import Row, percentile, row
from bench.soak_fleet import SoakWorker, workers
from bench.soak_load import BORNE, Load, Tally
from bench.soak_watch import BOUNDS, JUDGED_SECONDS, Sample, grown, growth, sample
from cachefleet_core.tenancy import FleetKey

RESULTS: Final = Path(__file__).parent / "results" / "soak.json"
SECONDS: Final = 600.0
WORKERS: Final = 3
SHARE: Final = 0.8
"""Of capacity."""
RAMP: Final = (4, 8, 16, 32)
"""Requests at once, one after the other."""
RAMP_SECONDS: Final = 30.0
BETWEEN_DEATHS: Final = (15.0, 25.0)
AWAY: Final = (3.0, 10.0)
"""Seconds until a worker that died is started anew."""
PROGRESS_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 60.0
"""In which a control plane that is asked nothing more has closed what it had open."""
WARM_SECONDS: Final = 60.0
"""In which workers are to have reported."""
RECORDED_BYTES: Final = 1024 * 1024
"""Of requests kept to simulate with: so few that they are all there before memory is judged."""


@dataclass(slots=True)
class Soak:
    """One run and what came of it."""

    seconds: float
    seed: int
    capacity: float = 0.0
    tally: Tally = field(default_factory=Tally)
    samples: list[Sample] = field(default_factory=list)
    deaths: int = 0
    left: int = 0
    """Requests under way after the end."""

    @property
    def problems(self) -> list[str]:
        """Why it is no pass."""
        out = [f"{count} x {name}" for name, count in self.tally.failures.items() if name != BORNE]
        if self.left:
            out.append(f"{self.left} requests are under way after the end")
        if self.seconds >= JUDGED_SECONDS:
            out += grown(self.samples)
        return out

    async def run(self, running: Running, fleet: Mapping[str, SoakWorker]) -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as http:
            load = Load(running.gateway, fleet, seed=self.seed)
            self.tally = load.tally
            await until_exact(http, running)
            self.capacity = await capacity(http, load, seconds=min(RAMP_SECONDS, self.seconds / 4))
            rate = SHARE * self.capacity
            print(f"capacity {self.capacity:.0f} requests/s, {rate:.0f} are asked for", flush=True)
            began = time.monotonic()
            others = [
                asyncio.create_task(self._deaths(fleet, running)),
                asyncio.create_task(self._watch(fleet, running, began)),
            ]
            await load.steadily(http, rate=rate, seconds=self.seconds)
            await load.finish()
            for task in others:
                task.cancel()
            await asyncio.wait(others)
            for task in others:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
        self.left = await settled(running)

    async def _deaths(self, fleet: Mapping[str, SoakWorker], running: Running) -> None:
        chance = random.Random(self.seed)
        longest = self.seconds / 2  # a short run has one death at least
        while True:
            await asyncio.sleep(min(chance.uniform(*BETWEEN_DEATHS), longest / 2))
            worker = chance.choice([one for one in fleet.values() if one.alive])
            await asyncio.to_thread(worker.kill, agent=chance.random() < 0.5)
            self.deaths += 1
            await asyncio.sleep(min(chance.uniform(*AWAY), longest / 4))
            worker.start(running)

    async def _watch(self, fleet: Mapping[str, SoakWorker], running: Running, began: float) -> None:
        shown = began
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            self.samples.append(await asyncio.to_thread(sample, running, now - began))
            if now - shown >= PROGRESS_SECONDS:
                shown = now
                self._show(self.samples[-1], fleet)

    def _show(self, last: Sample, fleet: Mapping[str, SoakWorker]) -> None:
        alive = sum(worker.alive for worker in fleet.values())
        print(
            f"{last.at:>5.0f} s  {self.tally.ended:>7} ended  {self.tally.faults:>4} failed"
            f"  {self.tally.failures[BORNE]:>4} borne  {last.under_way:>4} under way  {last.memory:>6.1f} MiB"
            f"  {last.descriptors:>4} files  {last.tasks:>4} tasks  {alive} of {len(fleet)} workers",
            flush=True,
        )

    def rows(self) -> list[Row]:
        ended = self.tally.seconds
        out = [
            row("capacity", self.capacity, unit="requests/s"),
            row("requests", self.tally.ended, unit=""),
            row("failed", self.tally.faults, unit="") | {"bar": "≤ 0", "kept": not self.tally.faults},
            row(BORNE, self.tally.failures[BORNE], unit=""),
            row("not sent, too many open", self.tally.skipped, unit=""),
            row("deaths of workers", self.deaths, unit=""),
            row("answered, p50", percentile(ended, 50), unit="s"),
            row("answered, p99", percentile(ended, 99), unit="s"),
            row("under way after the end", self.left, unit="") | {"bar": "≤ 0", "kept": not self.left},
        ]
        judged = self.seconds >= JUDGED_SECONDS
        for bound in BOUNDS:
            found = row(f"{bound.name} a minute", growth(self.samples, bound.name), unit=bound.unit.strip())
            kept = not any(words.startswith(bound.name) for words in grown(self.samples))
            out.append(found | ({"bar": f"≤ {bound.per_minute:g}", "kept": kept} if judged else {}))
        return out


async def capacity(http: aiohttp.ClientSession, load: Load, *, seconds: float) -> float:
    """The most requests a second that any number at once came to."""
    return max([await load.closely(http, connections=at_once, seconds=seconds / len(RAMP)) for at_once in RAMP])


async def until_exact(http: aiohttp.ClientSession, running: Running) -> None:
    """Until agents have reported."""
    async with asyncio.timeout(WARM_SECONDS):
        while True:
            asked = {"model": "bench", "prompt": "hello " * 100, "max_tokens": 1}
            async with http.post(f"{running.gateway}/v1/completions", json=asked) as answer:
                await answer.read()
                if answer.headers.get("x-cachefleet-knowledge") == "exact":
                    return
            await asyncio.sleep(0.2)


async def settled(running: Running) -> int:
    """Requests that are still under way after SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < end:
        left = (await asyncio.to_thread(sample, running, 0.0)).under_way
        if not left:
            break
        await asyncio.sleep(0.5)
    return left


def soak(seconds: float, *, seed: int = 6) -> Soak:
    """One run. RuntimeError where it could not begin."""
    key, run = FleetKey.generate(), Soak(seconds, seed)
    with tempfile.TemporaryDirectory() as name:
        folder, everywhere = Path(name), os.sched_getaffinity(0)
        with workers(folder, key, count=WORKERS) as fleet:
            engines = {name: worker.engine for name, worker in fleet.items()}
            recorded = str(RECORDED_BYTES)
            with plane(folder, key, engines, core=everywhere, recorded_request_bytes=recorded) as running:
                for worker in fleet.values():
                    worker.start(running)
                asyncio.run(run.run(running, fleet))
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--seed", type=int, default=6)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # its processes end with it
    run = soak(given.seconds, seed=given.seed)
    rows = run.rows()
    for one in rows:
        verdict = f"   {one['bar']} {'kept' if one['kept'] else 'MISSED'}" if "bar" in one else ""
        print(f"{one['row']:<50}{one['ours']:>12.4g} {one['unit']}{verdict}")
    for name, example in run.tally.examples.items():
        print(f"{run.tally.failures[name]} x {name}; the first, {example}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")
    if run.problems:
        sys.exit("; ".join(run.problems))


if __name__ == "__main__":
    main()
