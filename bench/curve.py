"""The hit curve of a pool beside full simulations of what it foretells: other budgets, other numbers of workers.

    CACHEFLEET_TRACES=... python -m bench.curve            # an hour: each point is a whole simulation
    python -m bench.curve --requests 1500 --trace agents   # the beginning of one trace

A trace is simulated once on today's fleet, four workers with budgets that hold a part of it. What answers tell is fed
to the reuse distances, request by request as they end, as the control plane does; a curve of that foretells the hit
ratio of every other fleet, and each is simulated, too: the whole of the real decisions, index and frames. Errors are in
points: foretold less simulated.

Beside it, *in outline*, the hit ratio of the same fleet by native code that plays the same requests (`curve_outline`).

Rates are such that every fleet keeps up. A fleet that does not is another regime (who waits for seconds is sent
elsewhere), and its curve is not one of its caches.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.curve_outline import load_of, outlined
from bench.replay_run import POOL, Replay
from bench.replay_work import BLOCK, chats, mooncake, sessions, synthetic, usable
from bench.rows import Row, row
from cachefleet_controlplane.capacity.capacity_report import PoolCapacity, pool_capacity
from cachefleet_controlplane.capacity.pool_measures import PoolMeasures
from cachefleet_controlplane.capacity.pool_reuse import PoolReuse, ReusedPrompt, Window
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.placement import Placed
from cachefleet_controlplane.simulation.simulated_scheduler import Generation
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.tenancy import DEFAULT_TENANT, TenantId

RESULTS: Final = Path(__file__).parent / "results" / "curve.json"
TODAY: Final = 4
SIZES: Final = (
    *((TODAY, factor) for factor in (0.25, 0.5, 2.0, 4.0)),
    *((workers, 1.0) for workers in (1, 2, 3, 6, 8)),
)
"""Workers, and times the budget."""
LOOKS: Final = 50
"""How often what workers hold is looked at."""
NOTED: Final = 1000
"""Requests whose feeding is timed as one."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace and today's fleet."""

    name: str
    load: Callable[[], list[SimulatedRequest]]
    setup: Setup


WORKLOADS: Final = (
    Workload(
        "mooncake",
        lambda: mooncake()[:4000],
        Setup(blocks=12_000, budget_blocks=2000, prefill_tokens_per_second=2500.0, batched_tokens=256),
    ),
    Workload(
        "agents",
        partial(sessions, within=600.0, until=3600.0),
        Setup(
            blocks=50_000,
            budget_blocks=10_000,
            prefill_tokens_per_second=12_000.0,
            batched_tokens=2048,
            model_len=131_072,
        ),
    ),
    Workload(
        "tau",
        partial(chats, within=3600.0, pause=(30.0, 90.0)),
        Setup(blocks=6000, budget_blocks=1000, prefill_tokens_per_second=1000.0, batched_tokens=512, model_len=16_384),
    ),
)
SELF_MADE: Final = Workload(
    "self-made",
    partial(synthetic, conversations=60, turns=10, gap=4.0),
    Setup(blocks=2000, budget_blocks=400, prefill_tokens_per_second=4000.0, batched_tokens=256, model_len=4096),
)


@dataclass(slots=True)
class Watched:
    """What a control plane sees of a fleet over a run."""

    held: list[int] = field(default_factory=list)
    distinct: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    elsewhere: dict[int, int] = field(default_factory=dict)
    """Blocks of a request that another worker had beyond the chosen one."""
    ended: list[tuple[int, float]] = field(default_factory=list)
    """Requests as they ended, and when."""


class WatchedRun(Replay):
    """A cache-aware run that is watched; ``run`` once."""

    def __init__(self, requests: Sequence[SimulatedRequest], setup: Setup) -> None:
        super().__init__(requests, setup, "cacheAware")
        self.watched = Watched()
        self._seconds = 0
        self._every = max(1, int(requests[-1].at / LOOKS))

    @property
    def hit_ratio(self) -> float:
        """Of the prompt tokens."""
        hits = sum(self.result.hits.values())
        return BLOCK * hits / sum(request.tokens for request in self._requests)

    def _watch(self) -> None:
        workers = self._fleet.workers.values()
        self.watched.used.append(sum(worker.pool.total - worker.pool.free for worker in workers))
        if self._seconds % self._every == 0:
            keys = [set(worker.pool._cached) for worker in workers]  # noqa: SLF001 - what the index has of them
            self.watched.held.append(sum(map(len, keys)))
            self.watched.distinct.append(len(set[int]().union(*keys)))
        self._seconds += 1
        super()._watch()

    def _send(self, request: SimulatedRequest, placed: Placed) -> None:
        held = {worker.name: _held(worker, request) for worker in self._fleet.workers.values()}
        self.watched.elsewhere[request.number] = max(held.values()) - held[placed.worker]
        super()._send(request, placed)

    def _advanced(self, generation: Generation) -> None:
        number = self._open[generation].request.number
        super()._advanced(generation)
        if generation.over:
            self.watched.ended.append((number, self._now))


def foretold(run: WatchedRun, setup: Setup, requests: Sequence[SimulatedRequest]) -> tuple[PoolCapacity, float]:
    """What a pool's curve says after a run, and the microseconds that a request took to be noted."""
    reuse, watched, numbered = PoolReuse(), run.watched, {request.number: request for request in requests}
    measures = measured(watched, setup)
    reuse.fit(measures.own)
    prompts = [(prompt_of(numbered[number], run), at) for number, at in watched.ended]
    began = time.process_time()
    for prompt, at in prompts:
        reuse.note(prompt, at)
    spent = (time.process_time() - began) / len(prompts)
    return pool_capacity(measures, reuse, Window.DAY, prompts[-1][1]), 1e6 * spent


def measured(watched: Watched, setup: Setup) -> PoolMeasures:
    """Means of the second half of a run, in which caches are full."""
    held, distinct = (_mean(part[len(part) // 2 :]) for part in (watched.held, watched.distinct))
    return PoolMeasures(
        key=POOL,
        workers=setup.workers,
        replicas=setup.workers,
        budget=setup.budget_blocks or setup.blocks,
        total=setup.blocks,
        used=_mean(watched.used),
        held=held,
        duplicated=1 - distinct / held if held else 0.0,
        prefill_rate=setup.prefill_tokens_per_second,
        rate_measured=True,
    )


def errors(
    workload: Workload, requests: Sequence[SimulatedRequest], sizes: Sequence[tuple[int, float]]
) -> Iterator[Row]:
    """For each size the hit ratio foretold, and in outline, beside the simulated one."""
    run = WatchedRun(requests, workload.setup)
    run.run()
    capacity, spent = foretold(run, workload.setup, requests)
    load = load_of(requests)
    print(f"{workload.name}: {len(requests)} requests, {run.hit_ratio:.4f} served, {capacity.curve.losses}")
    yield row(
        f"{workload.name}: today, without what was served", capacity.curve.uncorrected, run.hit_ratio, unit="share"
    )
    yield row(f"{workload.name}: noted", spent, None, unit="us")
    for workers, factor in sizes:
        setup = replace(workload.setup, workers=workers, budget_blocks=_times(workload.setup, factor))
        other = WatchedRun(requests, setup)
        other.run()
        point = capacity.curve.at(workers, factor)
        name = f"{workload.name}: {workers} workers, {factor:g} times the budget"
        found = row(name, point.hit_ratio, other.hit_ratio, unit="share")
        print(f"  {name:<50}{point.hit_ratio:.4f}{other.hit_ratio:>9.4f}{points(found):>+8.2f} points", flush=True)
        yield found
        drawn = row(f"{workload.name}: in outline, {workers} and {factor:g}", outlined(load, setup), other.hit_ratio)
        print(
            f"  {'in outline':<50}{drawn['ours']:.4f}{other.hit_ratio:>9.4f}{points(drawn):>+8.2f} points", flush=True
        )
        yield drawn | {"unit": "share"}


def points(one: Row) -> float:
    """How far a foretold ratio is off, in points."""
    return 100 * float(one["ours"] - one["peer"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, metavar="N", help="no more than the first N of each trace (at least 1)")
    parser.add_argument("--trace", choices=[one.name for one in (*WORKLOADS, SELF_MADE)], help="this one alone")
    given = parser.parse_args()
    rows: list[Row] = []
    for workload in (*WORKLOADS, SELF_MADE):
        if given.trace in {None, workload.name}:
            rows += _found(workload, given.requests)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")


def _found(workload: Workload, most: int | None) -> list[Row]:
    try:
        requests = workload.load()[:most]
    except FileNotFoundError as error:
        print(f"{workload.name}: left out, there is no {error}; CACHEFLEET_TRACES says where to look")
        return []
    return list(errors(workload, requests, SIZES))


def prompt_of(request: SimulatedRequest, run: WatchedRun) -> ReusedPrompt:
    """What the answer to a request of a run tells."""
    return ReusedPrompt(
        keys=request.packed,
        block_size=BLOCK,
        prompt_tokens=request.tokens,
        completion_tokens=request.outputs,
        servable_blocks=min(usable(request), len(request.keys)),
        served_tokens=BLOCK * run.result.hits[request.number],
        elsewhere_tokens=BLOCK * run.watched.elsewhere[request.number],
        tenant=TenantId(DEFAULT_TENANT),
    )


def _held(worker: SimulatedWorker, request: SimulatedRequest) -> int:
    return len(worker.pool.lookup(request.keys, usable(request)))


def _times(setup: Setup, factor: float) -> int:
    return min(setup.blocks, int((setup.budget_blocks or setup.blocks) * factor))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


if __name__ == "__main__":
    main()
