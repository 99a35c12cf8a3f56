"""What the replay gives where the learnt figures are taken for larger or smaller than they are.

    python -m bench.replay_sensitivity          # a quarter of an hour

Of each trace the first half, on the fleet of ``bench.replay``. The share of evicted tokens that come back, how many
wait for each second of computing, and how much waiting pays are each multiplied by a factor, the others left alone.
Hits are shown beside the ideal's, the 99th percentile of the queue met beside that of least loaded. Rows go to
bench/results/replay-sensitivity.json, a plot of them to replay-sensitivity.svg beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from bench.replay import TRACES, Trace
from bench.replay_policies import ideal_hits
from bench.replay_result import PolicyResult
from bench.replay_run import Replay
from bench.replay_work import blocks
from bench.rows import Row, percentile, row
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_controlplane.simulation.workload import SimulatedRequest
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth

RESULTS: Final = Path(__file__).parent / "results"
FACTORS: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
SHARE, DELAY, PAID = "evicted tokens that come back", "others that wait", "what waiting pays"
WIDTH, HEIGHT, EDGE = 300, 180, 45
COLOURS: Final = {SHARE: "#1b6ca8", DELAY: "#c2410c", PAID: "#3f7d20"}


@dataclass(slots=True)
class Scaled(PoolWorth):
    """A pool that takes what it has learnt for more or less than it is."""

    factors: dict[str, float] = field(default_factory=dict)

    def worth(self, workers: int) -> Worth:
        known = PoolWorth.worth(self, workers)
        share = min(1.0, known.eviction * self.factors.get(SHARE, 1.0))
        requests = known.requests_per_second * self.factors.get(DELAY, 1.0)
        return replace(known, eviction=share, requests_per_second=requests)


@dataclass(slots=True)
class ScaledWaiting(PaidWaiting):
    factor: float = 1.0

    def add(self, prefix: bytes, seconds: float, now: float) -> None:
        PaidWaiting.add(self, prefix, seconds * self.factor, now)


def measured(trace: Trace, requests: Sequence[SimulatedRequest], what: str, factor: float) -> PolicyResult:
    run = Replay(requests, trace.setup, "cacheAware")
    run.learn_into(Scaled(factors={what: factor}))
    run.pay_into(ScaledWaiting(factor=factor if what == PAID else 1.0))
    return run.run()


def rows(trace: Trace) -> Iterator[Row]:
    """Two for each figure and factor."""
    whole = trace.load()
    requests = whole[: len(whole) // 2]
    ideal = ideal_hits(requests, trace.setup.workers * trace.setup.blocks) / blocks(requests)
    queue = percentile(Replay(requests, trace.setup, "leastLoaded").run().backlogs, 99)
    for what in (SHARE, DELAY, PAID):
        for factor in FACTORS:
            run = measured(trace, requests, what, factor)
            name = f"{trace.name}: {what} times {factor:g}"
            facts = {"trace": trace.name, "what": what, "factor": factor}
            yield {**row(f"{name}: hits", run.hit_ratio, ideal, unit="share"), **facts, "metric": "hits"}
            met = percentile(run.backlogs, 99)
            yield {**row(f"{name}: queue met, p99", met, queue, unit="s"), **facts, "metric": "queue"}


def plot(found: Sequence[Row]) -> str:
    """The ratios as an SVG: a column for each trace, hits above queues."""
    traces = list(dict.fromkeys(one["trace"] for one in found))
    parts = []
    for column, trace in enumerate(traces):
        for line, metric in enumerate(("hits", "queue")):
            chosen = [one for one in found if (one["trace"], one["metric"]) == (trace, metric)]
            title = f"{trace}: {'hits / ideal' if metric == 'hits' else 'queue p99 / least loaded'}"
            parts.append(_panel(chosen, title, column * WIDTH, line * HEIGHT))
    parts += [
        f'<text x="{EDGE + 190 * place}" y="{2 * HEIGHT + 20}" fill="{colour}">{what}</text>'
        for place, (what, colour) in enumerate(COLOURS.items())
    ]
    width, height = max(600, len(traces) * WIDTH), 2 * HEIGHT + 35
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-size="11">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>\n"])


def _panel(found: Sequence[Row], title: str, left: int, top: int) -> str:
    ratios = [one["ratio"] for one in found]
    low, high = min(ratios), max(*ratios, min(ratios) + 0.01)
    x, right, y, bottom = left + EDGE, left + WIDTH - 15, top + 30, top + HEIGHT - 25

    def point(one: Row) -> str:
        place = FACTORS.index(one["factor"]) / (len(FACTORS) - 1)
        return f"{x + place * (right - x):.1f},{bottom - (one['ratio'] - low) / (high - low) * (bottom - y):.1f}"

    parts = [
        f'<text x="{x}" y="{top + 16}">{title}</text>',
        f'<rect x="{x}" y="{y}" width="{right - x}" height="{bottom - y}" fill="none" stroke="#999"/>',
        f'<text x="{x - 5}" y="{y + 8}" text-anchor="end">{high:.2f}</text>',
        f'<text x="{x - 5}" y="{bottom}" text-anchor="end">{low:.2f}</text>',
    ]
    for place, factor in enumerate(FACTORS):
        at = x + place / (len(FACTORS) - 1) * (right - x)
        parts.append(f'<text x="{at:.1f}" y="{bottom + 14}" text-anchor="middle">x{factor:g}</text>')
    for what, colour in COLOURS.items():
        points = " ".join(point(one) for one in found if one["what"] == what)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "\n".join(parts)


def main() -> None:
    found: list[Row] = []
    for trace in TRACES:
        try:
            for one in rows(trace):
                found.append(one)
                print(f"{one['row']:<72}{one['ours']:>8.3f}{one['ratio']:>8.3f}", flush=True)
        except FileNotFoundError as error:
            print(f"{trace.name}: left out, there is no {error.filename or error}")
    if not found:
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "replay-sensitivity.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "replay-sensitivity.svg").write_text(plot(found))
    print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
