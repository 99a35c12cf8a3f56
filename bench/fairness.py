"""What a tenant that floods a fleet does to the others: their slowest hundredth, with it and without, in virtual time.

    python -m bench.fairness                # a few minutes
    python -m bench.fairness --seconds 60   # longer runs, steadier percentiles

Five quiet tenants ask four workers for prompts of 1,024 tokens at random moments, two a second each; in the second
workload seven eighths of each of their prompts are cached. A sixth tenant asks for nothing (*alone*), for about what
the fleet has left (*in its share*), or for several times what it can do (*flooding*); its prompts are never cached.
Requests wait by *arrival* alone, by *shares*, or by shares where workers are sent little ahead (*shares, ahead*:
``admission.maxAheadSeconds``).

Real: the queue's order, places and charges, the Fleet and its decisions, index and frames. Modelled: the engines, and
time. *Flooding beside in its share* is what a tenant does to others by asking for more than its share, and has the bar;
*beside alone* has also what any use of an idle fleet costs others: an engine ends no step for a prompt that has come.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.fairness_run import FairnessRun, Order, TenantRequest
from bench.replay import line as told
from bench.replay_work import BLOCK, line, requests
from bench.rows import Row, percentile, row
from cachefleet_controlplane.simulation.fleet_setup import Setup

RESULTS: Final = Path(__file__).parent / "results" / "fairness.json"
NOISY: Final = "noisy"
QUIET: Final = tuple(f"quiet {number}" for number in range(5))
QUIET_RATE: Final = 2.0
"""Requests a second of each quiet tenant."""
DEMANDS: Final = {"alone": 0.0, "in its share": 12.0, "flooding": 60.0}
"""Requests a second of the noisy one; the fleet computes some 22 in all."""
PROMPT_BLOCKS: Final = 1024 // BLOCK
TAIL: Final = 7
"""Tokens after the last full block."""
OUTPUTS: Final = 32
FLEET: Final = Setup(
    workers=4, blocks=64_000 // BLOCK, prefill_tokens_per_second=8000.0, batched_tokens=512, model_len=8192
)
ARRIVAL: Final = Order("arrival", shares=False)
SHARES: Final = Order("shares", shares=True)
AHEAD: Final = Order("shares, ahead", shares=True, ahead_seconds=0.05)
BAR: Final = Bar("fairness", r"flooding beside in its share", "ratio", 1.10)


@dataclass(frozen=True, slots=True)
class Figures:
    """What quiet tenants got in one run, in seconds, and what of all that was computed they had."""

    first_p99: float
    answer_p99: float
    refused: int
    noisy_refused: int
    noisy_share: float


def tenants_work(noisy_rate: float, *, seconds: float, cached: bool, seed: int = 1) -> list[TenantRequest]:
    """Requests by arrival. A tenant's own do not depend on what others ask for."""
    rates = dict.fromkeys(QUIET, QUIET_RATE) | ({NOISY: noisy_rate} if noisy_rate else {})
    moments = sorted((at, name) for name, rate in rates.items() for at in _moments(f"{seed} {name}", rate, seconds))
    shared = PROMPT_BLOCKS * 7 // 8 if cached else 0
    lines, fresh = [], PROMPT_BLOCKS * len(QUIET)
    for at, name in moments:
        first = PROMPT_BLOCKS * QUIET.index(name) if name in QUIET else 0
        prefix = tuple(range(first, first + shared)) if name in QUIET else ()
        own = tuple(range(fresh, fresh + PROMPT_BLOCKS - len(prefix)))
        fresh += PROMPT_BLOCKS
        lines.append(line(at, prefix + own, TAIL, OUTPUTS))
    return [TenantRequest(name, request) for (_, name), request in zip(moments, requests(lines), strict=True)]


def _moments(seed: str, rate: float, seconds: float) -> Iterator[float]:
    chance, at = random.Random(seed), 0.0
    while (at := at + chance.expovariate(rate)) < seconds:
        yield at


def played(work: Sequence[TenantRequest], order: Order) -> Figures:
    """SimulationError where the simulation is not sound."""
    run = FairnessRun(work, FLEET, order)
    refused = run.run().refused
    quiet = [one.request.number for one in work if one.tenant != NOISY]
    served = [number for number in quiet if number not in refused]
    noisy = sum(tokens for number, tokens in run.computed.items() if number not in set(quiet))
    return Figures(
        first_p99=percentile([run.firsts[number] for number in served], 99),
        answer_p99=percentile([run.answers[number] for number in served], 99),
        refused=len(quiet) - len(served),
        noisy_refused=len(refused) - (len(quiet) - len(served)),
        noisy_share=noisy / sum(run.computed.values()),
    )


def rows(name: str, order: Order, by_demand: dict[str, Figures]) -> Iterator[Row]:
    """The quiet tenants' slowest hundredth while one floods, beside the two other demands."""
    flooded = by_demand["flooding"]
    for what, of in (("first token", "first_p99"), ("answer", "answer_p99")):
        for other in ("in its share", "alone"):
            title = f"{name}: {order.name}: p99 of others' {what}, flooding beside {other}"
            found = row(title, getattr(flooded, of), getattr(by_demand[other], of), unit="s")
            judged = order is AHEAD and other != "alone"
            yield {**found, "bar": str(BAR), "kept": BAR.holds(found["ratio"])} if judged else found
    yield row(f"{name}: {order.name}: others' requests refused while one floods", flooded.refused, unit="requests")
    yield row(f"{name}: {order.name}: share of computed tokens of who floods", flooded.noisy_share, unit="share")


def measured(seconds: float) -> Iterator[Row]:
    """All rows of the simulation."""
    for name, cached in (("uncached prompts", False), ("cached prompts", True)):
        for order in (ARRIVAL, SHARES, AHEAD):
            yield from rows(
                name,
                order,
                {
                    demand: played(tenants_work(rate, seconds=seconds, cached=cached), order)
                    for demand, rate in DEMANDS.items()
                },
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="virtual time of each run, 5 to 3600 (30)")
    given = parser.parse_args()
    if not 5 <= given.seconds <= 3600:
        parser.error("--seconds must be from 5 to 3600")
    found = []
    for one in measured(given.seconds):
        print(told(one), flush=True)
        found.append(one)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
