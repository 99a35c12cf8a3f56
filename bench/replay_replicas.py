"""Recorded requests through several replicas of the control plane in virtual time, with load that they share or not.

    python -m bench.replay_replicas                       # 1, 2 and 8 replicas; about ten minutes
    python -m bench.replay_replicas --replicas 1 8 --requests 3000

The Mooncake conversation trace as in bench.replay, and the stampede: one prefix of 8,192 tokens that all of a sudden
200 requests a second ask for, on eight full workers. Each request comes to a replica by chance. Replicas know of each
other's requests in flight at once, after 50 ms, or, as before there were Loads, only by the workers' reports of each
second (``reports``). What is the same for all: decisions, index, frames and engines of bench.replay.

The trace tells times in steps of 3 s, ten requests a step. Here those of one step come evenly spread over it: at one
instant no replica could know of another's.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Final

from bench.replay import STAMPEDE
from bench.replay_result import PolicyResult
from bench.replay_run import Replay
from bench.replay_work import mooncake, sharing, stampede
from bench.rows import percentile
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.workload import SimulatedRequest

KNOWN_AFTER: Final = {"at once": 0.0, "50 ms": 0.05, "reports": None}
WORKS: Final = ("stampede", "mooncake")


def spread(requests: Sequence[SimulatedRequest]) -> list[SimulatedRequest]:
    """Those that come at one time, spread evenly over the time until the next come."""
    moments = sorted({request.at for request in requests})
    until = dict(zip(moments, [*moments[1:], moments[-1] + 1.0], strict=True))
    each, come = Counter(request.at for request in requests), Counter[float]()
    spread = []
    for request in requests:
        later = (until[request.at] - request.at) * come[request.at] / each[request.at]
        come[request.at] += 1
        spread.append(replace(request, at=request.at + later))
    return spread


@dataclass(frozen=True, slots=True)
class Work:
    """Requests, the fleet for them, and the numbers of those whose time to the first token counts."""

    requests: Sequence[SimulatedRequest]
    setup: Setup
    counted: Sequence[int]


def rush() -> Work:
    requests = stampede()
    return Work(requests, STAMPEDE, sharing(requests))


def conversations(limit: int | None = None) -> Work:
    """FileNotFoundError where the trace is not there."""
    requests = spread(mooncake()[:limit])
    return Work(requests, Setup(), [request.number for request in requests])


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave."""

    replicas: int
    known: str
    run: PolicyResult
    first_tokens: list[float]

    @property
    def busiest(self) -> float:
        """Requests of the worker with most, beside the mean."""
        return max(self.run.served) / fmean(self.run.served)


def played(work: Work, replicas: Sequence[int], known: Sequence[str] = tuple(KNOWN_AFTER)) -> Iterator[Figures]:
    """All runs."""
    for count in replicas:
        for when in known if count > 1 else [""]:
            setup = replace(work.setup, replicas=count, share_seconds=KNOWN_AFTER.get(when))
            run = Replay(work.requests, setup, "cacheAware").run()
            yield Figures(count, when, run, [run.first_token[number] for number in work.counted])


def line(one: Figures) -> str:
    queue, first = percentile(one.run.backlogs, 99), one.first_tokens
    return (
        f"{one.replicas:>8} {one.known:<8}{one.run.hit_ratio:>7.4f}{fmean(one.run.backlogs):>9.3f} s{queue:>9.2f} s"
        f"{fmean(first):>8.3f} s{percentile(first, 99):>7.2f} s{one.busiest:>8.3f}   {sorted(one.run.served)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 8], metavar="N")
    parser.add_argument("--known", nargs="+", choices=KNOWN_AFTER, default=[*KNOWN_AFTER], help="when of others")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--requests", type=int, metavar="N", help="no more than the first N of the trace")
    given = parser.parse_args()
    makers: dict[str, Callable[[], Work]] = {"stampede": rush, "mooncake": partial(conversations, given.requests)}
    for name in given.work:
        try:
            work = makers[name]()
        except FileNotFoundError as error:
            print(f"{name}: left out, there is no {error.filename}; CACHEFLEET_TRACES says where to look")
            continue
        print(f"{name}: {len(work.requests)} requests, {work.setup.workers} workers")
        print("replicas known      hits  queue met        p99  first token   p99  busiest   served by each")
        for one in played(work, given.replicas, given.known):
            print(line(one), flush=True)


if __name__ == "__main__":
    main()
