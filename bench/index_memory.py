"""Memory that an index takes for each held block, in a process of its own: nothing freed before is found again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from bench import index_sides
from bench.index_sides import Side
from bench.index_work import Work, synthetic

REPEATS: Final = 3


def held_bytes(make: Callable[[Work], Side], blocks: int) -> float:
    """Median of some processes."""
    command = [sys.executable, "-m", "bench.index_memory", make.__name__, str(blocks)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(REPEATS)]
    return median(float(run.stdout) for run in runs)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    work = synthetic(workers=64, prompt_blocks=512, blocks=int(sys.argv[2]))
    side: Side = getattr(index_sides, sys.argv[1])(work)
    side.settle()
    before = resident()
    for chain in work.chains:
        side.apply(side.stored(chain))
    side.settle()
    print((resident() - before) / work.blocks)


if __name__ == "__main__":
    main()
