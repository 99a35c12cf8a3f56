"""A flood on real vLLM: what a tenant with many requests under way does to one that asks now and then.

    python -m bench.fairness_real               # about eight minutes on two cores
    python -m bench.fairness_real --rounds 12   # steadier medians
    python -m bench.fairness_real --whole       # whole answers: a prompt counts as sent ahead until its answer's end
    python -m bench.fairness_real --also 'sharedRequests: 6' --also 'maxAheadSeconds: 0.05'

``cachefleet up`` starts one worker with a tiny model on the CPU. A quiet tenant asks one request after the other, with
a pause between. A noisy one has none under way (*alone*), two (*2 at a time*) or many (*24 at a time*), or asks at
random moments for half of what it had of the latter without a bound: *its half* of the worker, as it is one of two
tenants. No prompt is asked for twice. Tenants are named by the header of the Gateway API Inference Extension, so no
keys are needed.

Phases of some seconds alternate: in each round every order of waiting has one of each demand, so that what the machine
does besides is the same for all. Orders are members of the pool's ``admission``, which holds without a restart.
Told are medians of phases, and of the ratio that the bar is on the 95 % interval, by resampling phases: as long as it
reaches over the bar, more rounds are needed to tell. In the end one line for each order says whether it meets the bar,
and which part of the answers without a bound it leaves.

Before anything is timed, both tenants have the same greedy answer to the same prompt, and each answer that is timed
has the tokens that it has to have. Engine, clients and control plane share the machine's cores: compare the columns of
one run, and take no time for a fleet's. Rows go to bench/results/fairness_real.json.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from bench.fairness_clients import PAUSE_SECONDS, Clients, Demand, clients
from bench.fairness_phases import ALONE, FLOOD, HALF, MODEST, UNBOUNDED, PhaseLog, verdict
from bench.rows import median, percentile, reported, row
from e2e.engine.fleet import READY_SECONDS, running_up, until

RESULTS: Final = Path(__file__).parent / "results" / "fairness_real.json"
POOL: Final = """
apiVersion: cachefleet.io/v1alpha1
kind: PrefixCachePool
metadata: {name: fair}
spec:
  model: {name: tiny, source: cachefleet/tiny, weightsMiB: 2, kvBytesPerToken: 512}
  replicas: 1
  engine: {maxModelLen: 6000, dtype: float32}
  device: {resource: "", memoryMiB: 1024, activationMiB: 512, floorMiB: 502}
  prefixCache: {budgetMiB: 2}
"""
PATIENCE: Final = "maxQueueSeconds: 300"
ORDERS: Final = {
    UNBOUNDED: "",
    "a prompt ahead beside others": "sharedAheadSeconds: 0.001",
    "2 beside others": "sharedRequests: 2",
}
"""``admission`` of the pool by the name of the order."""
AT_A_TIME: Final = {FLOOD: Demand(24), MODEST: Demand(2)}
IN_FORCE_SECONDS: Final = 2.0
"""After which the control plane has read its pool again."""


def admit(pool: Path, admission: str) -> None:
    """Have what a fleet's control plane reads of its pool say nothing of admission but this, and its patience."""
    told = yaml.safe_load(pool.read_text())
    told["metadata"]["generation"] += 1
    told["spec"]["admission"] = yaml.safe_load(f"{{{PATIENCE}, {admission}}}")
    text = pool.with_suffix(".new")
    text.write_text(yaml.safe_dump(told))
    text.replace(pool)


class Rounds:
    """Rounds of phases before one fleet, whose pool is changed from order to order."""

    def __init__(self, given: Clients, pool: Path, orders: Mapping[str, str], *, seconds: float) -> None:
        self._clients = given
        self._pool = pool
        self._orders = orders
        self._seconds = seconds
        self.log = PhaseLog()
        self.alone: list[float] = []
        """The slowest hundredth with no noisy tenant, by round."""

    async def play(self, rounds: int) -> None:
        """UnsoundError."""
        for number in range(rounds):
            phase = await self._clients.phase(Demand(), seconds=self._seconds)
            self.alone.append(percentile(phase.seconds, 99))
            for order in list(self._orders)[:: -1 if number % 2 else 1]:
                admit(self._pool, self._orders[order])
                await asyncio.sleep(IN_FORCE_SECONDS)
                await self._demands(order)

    async def _demands(self, order: str) -> None:
        """One phase of each demand; the flood first, by which its half is known."""
        for name in (FLOOD, HALF, MODEST):
            demand = Demand(a_second=self.log.half()) if name == HALF else AT_A_TIME[name]
            self.log.add(order, name, await self._clients.phase(demand, seconds=self._seconds))


async def played(gateway: str, pool: Path, orders: Mapping[str, str], options: argparse.Namespace) -> Rounds:
    """All rounds. UnsoundError."""
    async with clients(gateway, stream=not options.whole, pause=options.pause) as given:
        rounds = Rounds(given, pool, orders, seconds=options.seconds)
        await rounds.play(options.rounds)
    return rounds


def measured(orders: Mapping[str, str], options: argparse.Namespace) -> Rounds:
    """All rounds of a fleet, from its start to its end. UnsoundError."""
    with tempfile.TemporaryDirectory(prefix="cachefleet-fairness-") as folder:
        pool = Path(folder) / "pool.yaml"
        pool.write_text(POOL)
        with running_up(pool, Path(folder), forked=False) as fleet:
            until(lambda: fleet.live(1), READY_SECONDS, "whole")
            return asyncio.run(played(fleet.gateway, fleet.data_dir / "pools.yaml", orders, options))


def options() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="3 to 1000 (5)")
    parser.add_argument("--seconds", type=float, default=7.0, help="of each phase, 1 to 3600 (7)")
    parser.add_argument(
        "--pause", type=float, default=PAUSE_SECONDS, help=f"of the quiet tenant, at most, 0 to 60 s ({PAUSE_SECONDS})"
    )
    parser.add_argument("--whole", action="store_true", help="whole answers (streams)")
    parser.add_argument("--also", action="append", default=[], metavar="ADMISSION", help="another order of waiting")
    given = parser.parse_args()
    for name, least, most in (("rounds", 3, 1000), ("seconds", 1, 3600), ("pause", 0, 60)):
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name} must be from {least} to {most}")
    return given


def main() -> None:
    given = options()
    rounds = measured(ORDERS | {admission: admission for admission in given.also}, given)
    alone = row(f"real vLLM: p99 of the quiet tenant's answer, {ALONE}", median(rounds.alone), unit="s")
    found = reported([alone, *rounds.log.rows()], RESULTS)
    print("", *(verdict(one) for one in found if "bar" in one), sep="\n")


if __name__ == "__main__":
    main()
