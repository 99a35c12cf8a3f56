"""What a query waits for while the index is written to without a pause, in the two ways in which that can be."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from statistics import median
from typing import Final

from bench.index_sides import Ours
from bench.index_work import synthetic
from bench.rows import Row, percentile
from cachefleet_core.report_frames import Delta, Operation, Removed, Stored, encode

SECONDS: Final = 8.0
STRETCHES: Final = 16
"""Of the time, each with a percentile of its own, of which the median counts: a machine is not always as busy."""
ASKED_PER_S: Final = 2000.0
LARGE: Final = (300, 384)
SMALL: Final = (1, 128)
"""Operations of a frame, and their blocks."""


def beside_rows() -> Iterator[Row]:
    """Sixty-four workers, a million blocks, prompts of 512."""
    work = synthetic(workers=64, prompt_blocks=512, blocks=1_000_000)
    side = Ours(work)
    for chain in work.chains:
        side.apply(side.stored(chain))
    questions = [side.question(query.keys) for query in work.queries[:50]]
    waited, speed = _beside_thread(side, questions)
    yield from _rows("beside a thread that applies 115,200-block frames", waited, speed)
    waited, speed = _between_frames(side, questions)
    yield from _rows("in a loop that applies 128-block frames", waited, speed)


def _rows(way: str, waited: list[float], speed: float) -> Iterator[Row]:
    size = len(waited) // STRETCHES
    stretches = [waited[number * size : (number + 1) * size] for number in range(STRETCHES)]
    for share in (50, 99):
        yield _row(f"query p{share} {way}", median(percentile(stretch, share) for stretch in stretches), "us")
    yield _row(f"writing, {way}", speed, "M blocks/s")


def _row(name: str, value: float, unit: str) -> Row:
    return {"row": name, "ours": value, "peer": None, "ratio": None, "unit": unit}


def _frames(operations: int, blocks: int) -> list[bytes]:
    """Frames that store new chains, each followed by one that removes them: the index stays as large as it is."""
    chance, frames = random.Random(2), []
    for number in range(8):
        chains = [chance.randbytes(8 * blocks) for _ in range(operations)]
        kinds: tuple[tuple[Operation, ...], ...] = (
            tuple(Stored(0, keys) for keys in chains),
            tuple(Removed(keys) for keys in chains),
        )
        frames += [encode(Delta(sequence=number, operations=kind)) for kind in kinds]
    return frames


def _beside_thread(side: Ours, questions: Sequence[Callable[[], bytes]]) -> tuple[list[float], float]:
    """Queries in bursts with pauses while another thread applies frames: us of each, and the writer's speed."""
    stop, written, waited = threading.Event(), [0], []
    frames = cycle(_frames(*LARGE))

    def write() -> None:
        while not stop.is_set():
            written[0] += side.index.ingest("writer", next(frames))[2]

    writer = threading.Thread(target=write)
    writer.start()
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for ask in questions:
            begun = time.perf_counter_ns()
            ask()
            waited.append((time.perf_counter_ns() - begun) / 1e3)
        time.sleep(0.001)
    stop.set()
    writer.join()
    return waited, written[0] / (time.perf_counter() - start) / 1e6


def _between_frames(side: Ours, questions: Sequence[Callable[[], bytes]]) -> tuple[list[float], float]:
    """Queries that come at random moments to a loop that applies frames: us from then to the answer, and its speed.

    The clock is the loop's CPU time: what other programs take of a busy machine is not the index's.
    """
    chance, frames, asks = random.Random(4), cycle(_frames(*SMALL)), cycle(questions)
    written, waited = 0, []
    start = now = time.thread_time()
    due = start
    while now - start < SECONDS:
        written += side.index.ingest("writer", next(frames))[2]
        now = time.thread_time()
        while due <= now:
            next(asks)()
            now = time.thread_time()
            waited.append((now - due) * 1e6)
            due += chance.expovariate(ASKED_PER_S)
    return waited, written / (now - start) / 1e6
