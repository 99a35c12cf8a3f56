"""A day of a trace through fleets of every size: workers that ``desired_workers`` asks for, and that are enough.

    CACHEFLEET_TRACES=... python -m bench.scaling_day            # a minute: one simulation for each size
    python -m bench.scaling_day --requests 4000 --rate 8

The trace's time is stretched to a day with a quiet night: as many requests as the trace has, in its order. Each number
of workers is simulated over the whole day, with the real decisions; the best of a step is the fewest workers that
computed within the headroom what their caches did not serve in the WINDOW before. Beside it is what the control plane
asks for: its curve is fed with the answers of the fleet that it asked for until then, as they end, and is told that
fleet's figures.

Left out are a new worker's cold cache, what one that goes takes along, and queues: the simulated engines are faster
than the rate that workers are taken to have, by which the numbers are judged.
"""

from __future__ import annotations

import argparse
import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Final

from bench.curve import Watched, WatchedRun, Workload, measured, prompt_of
from bench.replay_work import BLOCK, mooncake
from cachefleet_controlplane.capacity.capacity_report import REQUESTS_NEEDED, demand
from cachefleet_controlplane.capacity.desired_workers import HEADROOM, DesiredWorkers
from cachefleet_controlplane.capacity.hit_curve import HitCurve
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import PoolReuse, ReusedPrompt, Window
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.simulated_run import START
from cachefleet_controlplane.simulation.workload import SimulatedRequest

DAY: Final = 86_400.0
STEP: Final = 900.0
"""Seconds between two moments at which both are compared."""
LOOK: Final = 60.0
"""Seconds between two looks at what is desired."""
WINDOW: Final = 3600.0
"""Seconds over which load is measured: eight requests a minute are few, and long and short ones come by chance."""
QUIET: Final = 0.2
"""Of the busiest moment's load: the night's."""
FIRST: Final = 2 * 3600.0
"""Seconds of the day before which caches and curve know too little."""
MOST: Final = 6
"""Workers."""
DAILY: Final = Workload(
    "mooncake, a day",
    mooncake,
    Setup(blocks=12_000, budget_blocks=2000, prefill_tokens_per_second=100.0, batched_tokens=256, state_every=4.0),
)
"""A fleet that keeps up at any size."""
RATE: Final = 20.0
"""Prompt tokens a second of a worker by which it is judged: the busiest hours take six."""


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of the day: workers that are desired, and the fewest that are enough."""

    at: float
    desired: int
    best: int


def stretched(requests: Sequence[SimulatedRequest]) -> list[SimulatedRequest]:
    """The requests over a day, as many in an hour as it is busy: least at midnight, most at noon."""
    first, last = requests[0].at, requests[-1].at
    return [replace(one, at=_moment((one.at - first) / (last - first))) for one in requests]


def _moment(share: float) -> float:
    """When so much of the day's load has come: the inverse of its integral, by bisection."""
    low, high = 0.0, DAY
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _come(middle) < share else (low, middle)
    return high


def _come(at: float) -> float:
    swing = (1 - QUIET) / (1 + QUIET)
    turn = 2 * math.pi * at / DAY
    return (turn - swing * math.sin(turn)) / (2 * math.pi)


class DayRun:
    """A day with one number of workers, and what of it is seen at a moment."""

    def __init__(self, requests: Sequence[SimulatedRequest], setup: Setup) -> None:
        self._requests = requests
        self._at = [START + one.at for one in requests]
        self._setup = setup
        self._run = WatchedRun(requests, setup)
        self._run.run()
        self._ended = [at for _, at in self._run.watched.ended]

    def asked(self, begin: float, end: float) -> int:
        """Prompt tokens that came in that time."""
        return sum(one.tokens for one in self._came(begin, end))

    def computed(self, begin: float, end: float) -> int:
        """Of these, those that no cache served."""
        hits = self._run.result.hits
        return sum(one.tokens - BLOCK * hits[one.number] for one in self._came(begin, end))

    def answered(self, begin: float, end: float) -> Iterator[tuple[ReusedPrompt, float]]:
        """Requests that ended in that time, as the curve is fed with them."""
        ended = self._run.watched.ended[bisect_left(self._ended, begin) : bisect_left(self._ended, end)]
        return ((prompt_of(self._requests[number], self._run), at) for number, at in ended)

    def measures(self, at: float, rate: float) -> PoolMeasures:
        """What the workers have and do then, each of which computes so many tokens a second."""
        seen, share = self._run.watched, (at - START) / (self._at[-1] - START)
        place = min(len(seen.held) - 1, int(share * len(seen.held)))
        used = seen.used[max(0, int(at - START - WINDOW)) : int(at - START) + 1]
        return replace(
            measured(Watched([seen.held[place]], [seen.distinct[place]], used), self._setup),
            prefill_rate=rate,
            asked_rate=self.asked(at - WINDOW, at) / WINDOW,
        )

    def _came(self, begin: float, end: float) -> Sequence[SimulatedRequest]:
        return self._requests[bisect_left(self._at, begin) : bisect_left(self._at, end)]


def days(workload: Workload, requests: Sequence[SimulatedRequest], most: int) -> dict[int, DayRun]:
    """The day with each number of workers."""
    return {workers: DayRun(requests, replace(workload.setup, workers=workers)) for workers in range(1, most + 1)}


def followed(runs: Mapping[int, DayRun], rate: float) -> list[Step]:
    """What is desired and what is best each STEP, from FIRST on."""
    wanted, steps = Asked(runs, rate), list[Step]()
    for look in range(1, int(DAY / LOOK) + 1):
        at = START + look * LOOK
        wanted.look(at)
        if look * LOOK % STEP == 0 and look * LOOK >= FIRST:
            steps.append(Step(look * LOOK, wanted.workers, best(runs, rate, at)))
    return steps


def best(runs: Mapping[int, DayRun], rate: float, at: float) -> int:
    """The fewest workers that computed with headroom what came in the WINDOW before; the most where none did."""
    room = HEADROOM * rate * WINDOW
    return next((size for size, run in runs.items() if run.computed(at - WINDOW, at) <= room * size), len(runs))


class Asked:
    """An autoscaler that follows what is desired at once, in a fleet of these sizes."""

    def __init__(self, runs: Mapping[int, DayRun], rate: float) -> None:
        self._runs = runs
        self._rate = rate
        self._reuse = PoolReuse()
        self._desired = DesiredWorkers()
        self._seen = START
        self.workers = 1

    def look(self, at: float) -> None:
        """Note what was answered since, and change the number of workers."""
        run = self._runs[self.workers]
        for prompt, ended in run.answered(self._seen, at):
            self._reuse.note(prompt, ended)
        self._seen, measures = at, run.measures(at, self._rate)
        self._reuse.fit(measures.own)
        curve = HitCurve(measures, partial(self._reuse.curve, Window.RECENT, now=at))
        if curve.now.requests >= REQUESTS_NEEDED:
            found = self._desired.at(at, demand(measures), curve.at)
            self.workers = min(found.workers, len(self._runs))


def turns(numbers: Sequence[int]) -> int:
    """How often a number that rose falls, or one that fell rises."""
    changes = [after - before for before, after in pairwise(numbers) if after != before]
    return sum(before * after < 0 for before, after in pairwise(changes))


def main() -> None:
    """Print each step of the day."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--requests", type=int, default=None, metavar="N", help="no more than the first N (500 or more)"
    )
    parser.add_argument("--most", type=int, default=MOST, metavar="N", help="workers to simulate, from 1 on")
    parser.add_argument("--rate", type=float, default=RATE, metavar="N", help="tokens a second of a worker (over 0)")
    given = parser.parse_args()
    steps = followed(days(DAILY, stretched(DAILY.load()[: given.requests]), given.most), given.rate)
    for step in steps:
        print(f"{step.at / 3600:6.2f} h  desired {step.desired}  best {step.best}")
    off = [abs(step.desired - step.best) for step in steps]
    print(f"{len(steps)} steps, {max(off)} off at most, {turns([step.desired for step in steps])} turns")


if __name__ == "__main__":
    main()
