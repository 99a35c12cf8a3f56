"""The native index and keyer against Dynamo's, side by side in one run.

    python -m bench.index                       # one million and ten million blocks, eight minutes here
    python -m bench.index --blocks 1000000      # five

Sides take turns within each row; figures are medians of REPEATS at least. Answers are checked against what the work
says is right before anything is timed, and a wrong one voids the row. Storing and evicting are CPU time, of all threads
of the process; queries are the time that the caller waits. The ratio is how many times less ours is. A timing does not
fail the command. Rows go to bench/results/index.json.

On idle cores the peer, which answers on a thread of its own, waits for a core to wake up, 70 us on some machines. With
--awake every core spins at idle priority, so that nobody waits for that.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.index_cost import own_rows
from bench.index_exact import exact_rows
from bench.index_hash import hash_rows
from bench.index_memory import held_bytes
from bench.index_select import select_row
from bench.index_sides import Dynamo, Ours, Side, versions
from bench.index_windows import window_rows
from bench.index_work import Work, cut, synthetic, traces
from bench.rows import Row, percentile

RESULTS: Final = Path(__file__).parent / "results" / "index.json"
REPEATS: Final = 5
EVENT_BLOCKS: Final = 300_000
EVICTED: Final = 300
PASSES: Final = 3
"""Over a work's queries in each turn: the first finds caches full of the other side's memory."""
SIDES: Final[tuple[Callable[[Work], Side], ...]] = (Ours, Dynamo)


def compared(name: str, figures: Sequence[float], unit: str) -> Row:
    """A row of ours and the peer's figure; the ratio says how many times less ours is."""
    ours, peer = figures
    return {"row": name, "ours": ours, "peer": peer, "ratio": peer / ours, "unit": unit}


def cpu(events: Sequence[Any], side: Side) -> float:
    """Seconds of CPU to apply events."""
    start = time.process_time()
    for event in events:
        side.apply(event)
    side.settle()
    return time.process_time() - start


def wrong(side: Side, work: Work) -> int:
    """How many queries it answers wrongly."""
    return sum(side.depths(side.question(query.keys)()) != query.depths for query in work.queries)


def store_rows(work: Work, title: str) -> Iterator[Row]:
    """Storing, and evicting tail first."""
    costs: dict[str, dict[Any, list[float]]] = {cost: {make: [] for make in SIDES} for cost in ("store", "evict")}
    evicted = work.tails[:: max(1, len(work.tails) // EVICTED)]
    gone = sum(chain.blocks for chain in evicted)
    for _ in range(REPEATS):
        for make in SIDES:
            side = make(work)
            events = [side.stored(chain) for chain in work.chains]
            costs["store"][make].append(cpu(events, side) / work.blocks * 1e9)
            if wrong(side, work):
                raise ValueError(f"{side.name} answers wrongly: {title}")
            if evicted:
                costs["evict"][make].append(cpu([side.removed(chain) for chain in evicted], side) / gone * 1e9)
            del side, events
            gc.collect()
    for cost, name in (("store", "store"), ("evict", "evict tail-first")):
        if all(costs[cost].values()):
            yield compared(f"{name}, {title}", [median(taken) for taken in costs[cost].values()], "ns CPU/block")


def query_rows(work: Work, title: str) -> Iterator[Row]:
    """Waiting for an answer: median and 99th percentile, in turns."""
    sides = [make(work) for make in SIDES]
    for side in sides:
        for chain in work.chains:
            side.apply(side.stored(chain))
        side.settle()
    bad = [side.name for side in sides if wrong(side, work)]
    if bad:
        raise ValueError(f"{bad[0]} answers wrongly: {title}")
    waited: list[list[list[float]]] = [[] for _ in sides]
    for _ in range(REPEATS):
        for side, times in zip(sides, waited, strict=True):
            questions = [side.question(query.keys) for query in work.queries]
            times.append([timed(ask) for _ in range(PASSES) for ask in questions])
    for share in (50, 99):
        figures = [median(percentile(turn, share) for turn in times) for times in waited]
        yield compared(f"query p{share}, {title}", figures, "us")


def timed(act: Callable[[], Any]) -> float:
    """Microseconds."""
    start = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start) / 1e3


def measured(blocks: Sequence[int]) -> Iterator[Row]:
    yield from hash_rows()
    for count in blocks:
        millions = f"{count / 1e6:g}M blocks"
        yield from store_rows(synthetic(workers=64, prompt_blocks=512, blocks=count), f"64 workers, {millions}")
        yield compared(f"memory, 64 workers, {millions}", [held_bytes(make, count) for make in SIDES], "bytes/block")
        for prompt in (512, 2048):
            for workers in (8, 64, 512):
                work = synthetic(workers=workers, prompt_blocks=prompt, blocks=count)
                yield from query_rows(work, f"{prompt} blocks, {workers} workers, {millions}")
    small = synthetic(workers=64, prompt_blocks=512, blocks=EVENT_BLOCKS)
    for size in (128, 16, 1):
        yield from store_rows(cut(small, size), f"64 workers, events of {size}")
    yield from exact_rows()
    for name, work in traces():
        yield from store_rows(work, name)
        yield from query_rows(work, name)
    yield from window_rows()
    yield from own_rows()
    yield select_row()  # last: its threads live on


@contextmanager
def awake() -> Iterator[None]:
    """Each core has something to do, which anything else takes it from at once."""
    spin = "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def line(row: Row) -> str:
    return (
        f"{row['row']:<60}"
        + "".join(f"{figure(row[name]):>12}" for name in ("ours", "peer", "ratio"))
        + f" {row['unit']}"
    )


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, action="append", metavar="N", help="held blocks; may be given again")
    parser.add_argument("--awake", action="store_true", help="keep all cores awake, in the peer's favour")
    given = parser.parse_args()
    blocks = given.blocks or [1_000_000, 10_000_000]
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {versions()}")
    if not list(traces()):
        print("no traces here: ../shared/traces is absent, their rows are left out")
    print(f"{'':<60}{'ours':>12}{'peer':>12}{'ratio':>12}")
    rows = []
    try:
        with awake() if given.awake else nullcontext():
            for row in measured(blocks):
                rows.append(row)
                print(line(row), flush=True)
    except ValueError as error:
        sys.exit(str(error))
    results = RESULTS.with_stem("index-awake") if given.awake else RESULTS
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"written to {os.path.relpath(results)}")


if __name__ == "__main__":
    main()
