"""What a tenant that floods a fleet does to the others: their slowest hundredth, with it and without, in virtual time.

    python -m bench.fairness                # some minutes
    python -m bench.fairness --seconds 300  # longer runs, steadier percentiles

Five quiet tenants ask four workers for prompts of 1,024 tokens at random moments, two a second each; in the second
workload seven eighths of each of their prompts are cached. A sixth tenant asks for nothing (*alone*), for a half or
nine tenths of what it would get (*half its share*, *its share*), or for several times what the fleet can do
(*flooding*); its prompts are never cached. Requests wait by *arrival* alone, by *shares*, or by shares where workers
are sent little ahead (``admission.maxAheadSeconds``: 0.05 s, or 0.15), and of a tenant at most six answers at a time
while others are there (``admission.sharedRequests``). The first ten seconds, in which caches fill, are not counted.

Real: the queue's order, places and charges, the Fleet and its decisions, index and frames. Modelled: the engines, and
time. The bar is on *flooding beside its share*: what a tenant does to others by asking for more than its share.
*Beside half its share* and *beside alone* also have what any use of a fleet costs others, noisy or not: an engine ends
no step for a prompt that has come, and answers share its steps with prompts. For *shares, ahead* the time of
the slowest hundredth is told by its parts. In the end one line for each order says whether it meets the bar.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.bars import Bar
from bench.fairness_run import FairnessRun, Order, TenantRequest
from bench.fairness_time import Part, mean_parts, slowest
from bench.replay_work import BLOCK, line, requests
from bench.rows import Row, percentile, reported, row
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import SimulatedRequest

RESULTS: Final = Path(__file__).parent / "results" / "fairness.json"
NOISY: Final = "noisy"
QUIET: Final = tuple(f"quiet {number}" for number in range(5))
QUIET_RATE: Final = 2.0
"""Requests a second of each quiet tenant."""
FLOOD: Final = "flooding"
SHARE: Final = "its share"
DEMANDS: Final = {
    False: {"alone": 0.0, "half its share": 7.0, SHARE: 12.5, FLOOD: 60.0},
    True: {"alone": 0.0, "half its share": 11.0, SHARE: 19.5, FLOOD: 60.0},
}
"""Requests a second of the noisy one, by whether prompts of others are cached; of a flood some 14 and 22 are served."""
WARM_SECONDS: Final = 10.0
"""Before requests count."""
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
FURTHER: Final = Order("shares, ahead of a prompt", shares=True, ahead_seconds=0.15)
"""So that workers have the next prompt before they end one, which a prompt alone in a worker takes 0.13 s for."""
BESIDE: Final = Order("shares, ahead, 6 beside others", shares=True, ahead_seconds=0.15, requests=6)
"""As many as keep a worker busy with prompts: the tokens of an answer take five times as long as its prompt."""
BAR: Final = Bar("fairness", r"flooding beside its share", "ratio", 1.10)


@dataclass(frozen=True, slots=True)
class Figures:
    """What quiet tenants got in one run, in seconds, and what of all that was computed they had."""

    first_p99: float
    answer_p99: float
    refused: int
    noisy_refused: int
    noisy_share: float
    tokens_per_second: float
    """Of all tenants' requests that were answered before the last one came."""
    first_parts: dict[Part, float]
    """Of the slowest hundredth of first tokens, as ``mean_parts``."""
    answer_parts: dict[Part, float]


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
    run = FairnessRun(work, FLEET, order, noisy=NOISY)
    refused = run.run().refused
    began, ends = work[0].request.at, work[-1].request.at
    counted = [one for one in work if one.request.at >= began + WARM_SECONDS]
    quiet = [one.request.number for one in counted if one.tenant != NOISY]
    served = [number for number in quiet if number not in refused]
    noisy = sum(run.computed.get(one.request.number, 0) for one in work if one.tenant == NOISY)
    ended = sum(run.computed[one.request.number] for one in work if _ended(run, one.request) <= ends)
    firsts, answers = (slowest(seconds, served) for seconds in (run.firsts, run.answers))
    return Figures(
        first_p99=percentile([run.firsts[number] for number in served], 99),
        answer_p99=percentile([run.answers[number] for number in served], 99),
        refused=len(quiet) - len(served),
        noisy_refused=sum(one.request.number in refused for one in work if one.tenant == NOISY),
        noisy_share=noisy / sum(run.computed.values()),
        tokens_per_second=ended / (ends - began),
        first_parts=mean_parts([run.times[number].first for number in firsts]),
        answer_parts=mean_parts([run.times[number].answer for number in answers]),
    )


def _ended(run: FairnessRun, request: SimulatedRequest) -> float:
    """When it was answered; never where it was refused."""
    return request.at + run.answers.get(request.number, math.inf)


def rows(name: str, order: Order, by_demand: dict[str, Figures], free: float) -> Iterator[Row]:
    """The quiet tenants' slowest hundredth while one floods, beside its other demands; ``free``: tokens that are
    computed a second where nothing bounds what workers are sent.
    """
    flooded = by_demand[FLOOD]
    others = [demand for demand in by_demand if demand != FLOOD]
    for what, of in (("first token", "first_p99"), ("answer", "answer_p99")):
        for other in reversed(others):
            title = f"{name}: {order.name}: p99 of others' {what}, {FLOOD} beside {other}"
            found = row(title, getattr(flooded, of), getattr(by_demand[other], of), unit="s")
            yield {**found, **_judged(order, found)} if other == SHARE else found
    title = f"{name}: {order.name}"
    tokens = row(f"{title}: tokens of all a second, {FLOOD}", flooded.tokens_per_second, free, unit="tokens/s")
    yield {**tokens, "setting": order.name, "price": tokens["ratio"]}
    yield row(f"{title}: others' requests refused, {FLOOD}", flooded.refused, unit="requests")
    yield row(f"{title}: share of computed tokens of who floods", flooded.noisy_share, unit="share")


def _judged(order: Order, found: Row) -> Row:
    return {"setting": order.name, "bar": str(BAR), "kept": BAR.holds(found["ratio"])}


def verdicts(found: Sequence[Row]) -> Iterator[str]:
    """A sentence for each order: whether it meets the bar with every workload, and at which price."""
    for name in dict.fromkeys(one["setting"] for one in found if "setting" in one):
        of = [one for one in found if one.get("setting") == name]
        worst = max(one["ratio"] for one in of if "bar" in one)
        least = min(one["price"] for one in of if "price" in one)
        met = "meets" if BAR.holds(worst) else "misses"
        yield f"{name} {met} {BAR}: {worst:.2f} at worst, with {least:.2f} of the tokens of {SHARES.name} or more"


def part_rows(name: str, order: Order, by_demand: dict[str, Figures]) -> Iterator[Row]:
    """Where the time of the slowest hundredth goes while one floods, beside the noisy tenant in its share."""
    for what, of in (("first tokens", "first_parts"), ("answers", "answer_parts")):
        flooded, beside = (getattr(by_demand[demand], of) for demand in (FLOOD, SHARE))
        for part in Part:
            title = f"{name}: {order.name}: slowest {what}: {part}"
            yield row(title, flooded[part] * 1000, beside[part] * 1000, unit="ms")


def measured(seconds: float) -> Iterator[Row]:
    """All rows of the simulation, for so many seconds after WARM_SECONDS."""
    for name, cached in (("uncached prompts", False), ("cached prompts", True)):
        free = math.inf
        for order in (SHARES, ARRIVAL, AHEAD, FURTHER, BESIDE):
            by_demand = {
                demand: played(tenants_work(rate, seconds=seconds + WARM_SECONDS, cached=cached), order)
                for demand, rate in DEMANDS[cached].items()
            }
            free = by_demand[FLOOD].tokens_per_second if order is SHARES else free
            yield from rows(name, order, by_demand, free)
            if order is AHEAD:
                yield from part_rows(name, order, by_demand)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual time of each run, 5 to 3600 (60)")
    given = parser.parse_args()
    if not 5 <= given.seconds <= 3600:
        parser.error("--seconds must be from 5 to 3600")
    found = reported(measured(given.seconds), RESULTS)
    print("", *verdicts(found), sep="\n")


if __name__ == "__main__":
    main()
