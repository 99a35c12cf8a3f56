"""Recorded workloads through the real decision path in virtual time, beside what else could decide.

    python -m bench.replay                      # a few minutes
    python -m bench.replay --requests 3000      # the beginning of each trace

The Mooncake conversation trace scaled 1:32, on four workers of 5,000 blocks each; then an hour of thirty coding-agent
sessions scaled 1:4, all begun within ten minutes, on four of 10,000; at last one prefix of 8,192 tokens that 200
requests a second ask for, on eight with full caches. Every policy sees the same requests at the same moments.

It is the simulation of `cachefleet simulate`, with policies of others beside the control plane's. Real: the Fleet, the
index and the choice (native where installed), the frames and their encoding, and of the worker's agent what measures
the engine's rates. Modelled: the engine, as a block pool and a scheduler by block keys with a fixed prefill rate and
inter-token latency, which the tests hold to the protocol-true fake one step by step; and time, so that an hour passes
in seconds. Not there: HTTP, sockets, tokenizers and the gateway. Answers are as many tokens as the trace says, scaled
too, and no trace says which: what a later prompt repeats of an answer is computed again, under every policy and in the
ideal.

Before anything is reported, it is checked that each request was answered once and whole, that the control plane never
had to ask an agent for what it had missed, and that at the end the index and the engine's pool have one digest for
every worker. A bar missed does not fail the command; a check does. Rows go to bench/results/replay.json: ``ours`` is
the cache-aware policy, ``peer`` the one a row names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.bars import Bar
from bench.replay_policies import ideal_hits
from bench.replay_result import PolicyResult
from bench.replay_run import PLAIN, POLICIES, Replay
from bench.replay_work import blocks, mooncake, sessions, sharing, stampede
from bench.rows import Row, percentile, row, row_text
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_core.native import native_code

RESULTS: Final = Path(__file__).parent / "results" / "replay.json"
IDEAL: Final = "ideal shared cache"
AIM: Final = 0.95
"""Of the ideal; the bar is what must hold."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload and the fleet that it is replayed on, and the bars that are meant for it."""

    name: str
    load: Callable[[], list[SimulatedRequest]]
    setup: Setup
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of a run, by what it is called in rows."""

    name: str
    unit: str
    of: Callable[[PolicyResult], float]


IDEAL_BAR: Final = rf"block hit ratio, beside {IDEAL}"
QUEUE_BAR: Final = r"^[^:]*: queue met, p99, beside leastLoaded"
MOONCAKE_BARS: Final = (
    Bar("replay", IDEAL_BAR, "ratio", 0.92, at_least=True),
    Bar("replay", r"hit ratio, beside random", "ratio", 1.9, at_least=True),
    Bar("replay", QUEUE_BAR, "ratio", 1.0),
    Bar("replay", r"fullest queue.*, beside leastLoaded", "ratio", 1.10),
)
SESSIONS_BARS: Final = (Bar("replay", IDEAL_BAR, "ratio", 0.97, at_least=True), Bar("replay", QUEUE_BAR, "ratio", 1.2))
TRACES: Final = (
    Trace("mooncake", mooncake, Setup(), MOONCAKE_BARS),
    Trace(
        "agent sessions",
        partial(sessions, within=600.0, until=3600.0),
        Setup(blocks=10_000, prefill_tokens_per_second=3000.0, batched_tokens=512, model_len=131_072),
        SESSIONS_BARS,
    ),
)
STAMPEDE: Final = Setup(
    workers=8, blocks=3000, prefill_tokens_per_second=8000.0, batched_tokens=2048, running=256, model_len=16_384
)
SPREAD: Final = "roundRobin"
STAMPEDE_BARS: Final = (Bar("replay", rf"stampede: .*, beside {SPREAD}", "ratio", 1.2),)
HITS: Final = Metric("block hit ratio", "share", lambda run: run.hit_ratio)
METRICS: Final = (
    HITS,
    Metric("queue met, p99", "s", lambda run: percentile(run.backlogs, 99)),
    Metric("fullest queue of each second, p99", "s", lambda run: percentile(run.worst, 99)),
    Metric("time to first token, mean", "s", lambda run: fmean(run.first_tokens)),
    Metric("time to first token, p99", "s", lambda run: percentile(run.first_tokens, 99)),
)


def replayed(trace: Trace, requests: Sequence[SimulatedRequest]) -> Iterator[PolicyResult]:
    """Every policy's run; each is told when it is there. SimulationError where one is not sound."""
    print(f"{trace.name}: {len(requests)} requests, {blocks(requests)} blocks, {trace.setup}")
    print(f"  {'':<12}{'hits':>7}{'queue met p50':>15}{'p99':>7}{'fullest p99':>13}{'first token':>13}{'p99':>7}")
    for policy in POLICIES:
        run = Replay(requests, trace.setup, policy).run()
        _, met, fullest, first, late = (metric.of(run) for metric in METRICS)
        print(
            f"  {policy:<12}{run.hit_ratio:>7.3f}{percentile(run.backlogs, 50):>13.2f} s{met:>5.1f} s{fullest:>11.1f} s"
            f"{first:>11.2f} s{late:>5.1f} s   served by each {run.served}, waited {len(run.waited)}",
            flush=True,
        )
        yield run


def trace_rows(trace: Trace, requests: Sequence[SimulatedRequest]) -> Iterator[Row]:
    """Ours beside the ideal, and beside every other policy, metric by metric."""
    ours, *others = replayed(trace, requests)
    size = trace.setup.workers * trace.setup.blocks
    ideal = ideal_hits(requests, size) / blocks(requests)
    found = [row(f"{HITS.name}, beside {IDEAL}", ours.hit_ratio, ideal, unit=HITS.unit)]
    found += [
        row(f"{metric.name}, beside {other.policy}", metric.of(ours), metric.of(other), unit=metric.unit)
        for metric in METRICS
        for other in others
    ]
    found.append(row("hits the index predicted, beside those found", *_predicted(ours), unit="blocks"))
    found += later_rows(requests, size, ours, others)
    for one in found:
        yield barred({**one, "row": f"{trace.name}: {one['row']}"}, trace.bars)


def later_rows(
    requests: Sequence[SimulatedRequest], size: int, ours: PolicyResult, others: Sequence[PolicyResult]
) -> Iterator[Row]:
    """The same of a trace's second half, by which nothing was tuned: hits beside the ideal, queues beside others'."""
    since = len(requests) // 2
    asked = blocks(requests[since:])
    ideal = ideal_hits(requests, size, since=since) / asked
    hits = sum(ours.hits[request.number] for request in requests[since:]) / asked
    yield row(f"second half: {HITS.name}, beside {IDEAL}", hits, ideal, unit=HITS.unit)
    met = percentile(ours.backlogs[since:], 99)
    for other in others:
        theirs = percentile(other.backlogs[since:], 99)
        yield row(f"second half: queue met, p99, beside {other.policy}", met, theirs, unit="s")


def barred(one: Row, bars: Sequence[Bar]) -> Row:
    """The row with its bar, where it has one."""
    for bar in bars:
        if re.search(bar.pattern, one["row"]):
            return {**one, "bar": str(bar), "kept": bar.holds(one[bar.column])}
    return one


def measured(limit: int | None) -> Iterator[Row]:
    """The rows of the traces that are there."""
    for trace in TRACES:
        try:
            requests = trace.load()[:limit]
        except FileNotFoundError as error:
            print(
                f"{trace.name}: left out, there is no {error.filename or error}; CACHEFLEET_TRACES says where to look"
            )
            continue
        yield from trace_rows(trace, requests)


def stampede_row() -> Row:
    """How long those wait who all of a sudden ask for one prefix, beside an even spread of them."""
    requests = stampede()
    hot = sharing(requests)
    waits = {}
    for policy in ("cacheAware", PLAIN, SPREAD):
        run = Replay(requests, STAMPEDE, policy).run()
        waits[policy] = percentile([run.first_token[number] for number in hot], 99)
        print(f"stampede: {policy:<12} first token p99 {waits[policy]:.2f} s   served by each {run.served}", flush=True)
    ours, even = waits["cacheAware"], waits[SPREAD]
    return barred(row(f"stampede: time to first token, p99, beside {SPREAD}", ours, even, unit="s"), STAMPEDE_BARS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, metavar="N", help="no more than the first N of each trace")
    given = parser.parse_args()
    print(f"index and block keys: {native_code().reason}")
    try:
        rows = list(measured(given.requests))
        if rows and given.requests is None:
            rows.append(stampede_row())
    except SimulationError as error:
        sys.exit(str(error))
    if not rows:
        return
    print(f"\n{'':<66}{'ours':>12}{'peer':>12}{'ratio':>12}")
    for one in rows:
        print(row_text(one))
    share = rows[0]["ratio"]
    print(f"of the ideal {share:.3f}, the aim is {AIM:g}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")


def _predicted(run: PolicyResult) -> tuple[float, float]:
    return float(sum(run.predicted.values())), float(run.hit_blocks)


if __name__ == "__main__":
    main()
