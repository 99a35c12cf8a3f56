"""Resident memory of an index, in a process of its own: nothing freed before is found again."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from bench import index_sides
from bench.index_sides import Ours, Side
from bench.index_work import Chain, Work, synthetic

REPEATS: Final = 3
CHURNED: Final = "churned"
CHURN: Final = 200
"""Times over that each prompt loses a part and gets it back: of a million blocks 100 million, as many as a fleet makes
in a day that computes 18,500 new tokens a second."""


def held_bytes(make: Callable[[Work], Side], blocks: int) -> float:
    """Bytes for each held block, the median of some processes."""
    return median(_measured(make.__name__, blocks) for _ in range(REPEATS))


def churn(blocks: int = 1_000_000) -> float:
    """Memory of ours after parts of all prompts were evicted and stored again, time after time, against before."""
    return _measured(CHURNED, blocks)


def _measured(what: str, blocks: int) -> float:
    command = [sys.executable, "-m", "bench.index_memory", what, str(blocks)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    what, blocks = sys.argv[1], int(sys.argv[2])
    work = synthetic(workers=64, prompt_blocks=512, blocks=blocks)
    side: Side = Ours(work) if what == CHURNED else getattr(index_sides, what)(work)
    side.settle()
    before = resident()
    for chain in work.chains:
        side.apply(side.stored(chain))
    side.settle()
    taken = resident() - before
    if isinstance(side, Ours) and what == CHURNED:
        _churn(side, work)
        print((resident() - before) / taken)
    else:
        print(taken / work.blocks)


def _churn(side: Ours, work: Work) -> None:
    chance = random.Random(3)
    for chain in (chain for _ in range(CHURN) for chain in chance.sample(work.tails, len(work.tails))):
        cut = 8 * chance.randrange(chain.blocks)
        parent = int.from_bytes(chain.keys[cut - 8 : cut], "little") if cut else chain.parent
        tail = Chain(chain.worker, parent, chain.keys[cut:])
        side.apply(side.removed(tail))
        side.apply(side.stored(tail))


if __name__ == "__main__":
    main()
