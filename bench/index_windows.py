"""Queries where a hit needs a sliding window's blocks besides full attention's, beside the same of a plain model.

As vLLM keeps them by default: of each chain's blocks the window has the last ones. So three of five queries end where
the window is held, or hold nothing, and two go back to where it is.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

from bench.index_work import Query, Work, synthetic
from bench.rows import Row, percentile
from cachefleet_core.block_keys import pack_keys, unpack_keys
from cachefleet_core.hit_rule import window_key

WINDOWS = ((64,), (1,), (64, 8))
"""Blocks: of 1,024 tokens in blocks of 16, of a state, and of two kinds of windows."""
REPEATS = 5
PASSES = 3


def window_rows(*, blocks: int = 1_000_000, workers: int = 64, prompt: int = 512) -> Iterator[Row]:
    work = synthetic(workers=workers, prompt_blocks=prompt, blocks=blocks)
    for windows in WINDOWS:
        asks = [_asks(work, ()), _asks(work, windows)]
        _check(work, asks[1], windows)
        times: list[list[list[float]]] = [[], []]
        for _ in range(REPEATS):
            for ask, turns in zip(asks, times, strict=True):
                turns.append([_timed(one) for _ in range(PASSES) for one in ask])
        for share in (50, 99):
            plain, ours = (median(percentile(turn, share) for turn in turns) for turns in times)
            lengths = ", ".join(map(str, windows))
            name = f"query p{share}, {prompt} blocks, {workers} workers, windows of {lengths} blocks, against none"
            yield {"row": name, "ours": ours, "peer": plain, "ratio": plain / ours, "unit": "us"}


def _asks(work: Work, windows: tuple[int, ...]) -> list[Any]:
    import cachefleet_native  # noqa: PLC0415 - only where it is measured

    index = cachefleet_native.Index()
    names = [f"w{number}" for number in range(work.workers)]
    for chain in work.chains:
        index.store(names[chain.worker], chain.parent, chain.keys, 0)
        for window in windows:
            keys = unpack_keys(chain.keys[-8 * window :])
            index.store(names[chain.worker], 0, pack_keys(window_key(key, window) for key in keys), 0)
    rules = [(True, windows, 0)] * len(names) if windows else []
    candidates = cachefleet_native.Candidates(names, rules)
    return [partial(index.match_packed, query.keys, candidates, usable=len(query.keys) // 8) for query in work.queries]


def _check(work: Work, asks: list[Any], windows: tuple[int, ...]) -> None:
    """ValueError where an answer is another than the work says is right."""
    for query, ask in zip(work.queries, asks, strict=True):
        found = struct.unpack(f"<{work.workers}I", ask())
        if {worker: depth for worker, depth in enumerate(found) if depth} != _right(query):
            raise ValueError(f"a query is answered wrongly with windows of {windows}")


def _right(query: Query) -> dict[int, int]:
    """Chains end after the prefix and after the tail: a depth between goes back to the prefix's end."""
    ends = (128, len(query.keys) // 8)
    return {worker: max((end for end in ends if end <= depth), default=0) for worker, depth in query.depths.items()}


def _timed(act: Any) -> float:
    start = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start) / 1e3


if __name__ == "__main__":
    for each in window_rows():
        print(f"{each['row']}: {each['ours']:.3g} us, plain {each['peer']:.3g} us, {each['ours'] / each['peer']:.2f} x")
