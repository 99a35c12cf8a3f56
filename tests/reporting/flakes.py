"""``python -m tests.reporting.flakes --rounds 3 TIER ...``: tiers in random order beside busy processes, several times.

Ends with what failed and how often; the exit status is 1 if anything did.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec

from tests.reporting import record
from tests.reporting.budgets import BY_NAME
from tests.reporting.hogs import guarded, hogs
from tests.reporting.hunt import Hunt, TierRun, hunted, listing, progress
from tests.reporting.tiers import PROGRESS_SECONDS, say

TIERS: Final = ("unit", "cluster", "engine")
"""In random order; the node tier's tests build on each other."""
SEEDS: Final = 2**32


def main(arguments: Sequence[str]) -> int:
    """0 where all rounds were clean."""
    signal.signal(signal.SIGTERM, _asked_to_end)
    options = _options(arguments)
    hunt = Hunt(hogs=options.hogs)
    runs: list[TierRun] = []
    with hogs(options.hogs):
        for run in rounds(options.rounds, options.tiers, record.FOLDER / "flakes"):
            runs.append(run)
            hunt = hunted(options.hogs, runs, os.environ)
            _keep(hunt, record.FOLDER)
            say(*progress(run, options.rounds))
    say("", *listing(hunt))
    return int(bool(hunt.flakes))


def rounds(number: int, tiers: Sequence[str], folder: Path) -> Iterator[TierRun]:
    """Every tier once a round, each time with a new seed."""
    for turn in range(1, number + 1):
        for tier in tiers:
            seed = random.SystemRandom().randrange(SEEDS)
            yield tier_run(turn, tier, seed, folder / f"round-{turn}")


def tier_run(turn: int, tier: str, seed: int, folder: Path) -> TierRun:
    """Run a tier in the order of a seed; all that it writes goes to a folder of the round's own."""
    record.forget(folder, tier)
    log = folder / f"{tier}.log"
    say(f"round {turn}, {tier}, seed {seed}, output in {log}")
    started = time.monotonic()
    command = ["make", "--no-print-directory", BY_NAME[tier].target]
    with guarded(command, log=log, environment=_environment(os.environ, seed, folder)) as process:
        status = _waited(process, f"round {turn}, {tier}")
    run = record.read(folder).get(tier, record.Run(seconds=0, budget=0))
    return TierRun(
        round=turn,
        tier=tier,
        seed=seed,
        status=status,
        seconds=round(time.monotonic() - started, 1),
        passed=run.passed,
        failed=run.failed,
        skipped=sum(run.skipped.values()),
        log=str(log),
    )


def _environment(given: Mapping[str, str], seed: int, folder: Path) -> dict[str, str]:
    options = f"{given.get('PYTEST_ADDOPTS', '')} --randomly-seed={seed} --results-in={folder}"
    return {**given, "PYTEST_ADDOPTS": options.strip()}


def _waited(process: subprocess.Popen[bytes], what: str) -> int:
    """The exit status; a line tells from time to time that it is still waited for."""
    started = time.monotonic()
    while True:
        try:
            return process.wait(PROGRESS_SECONDS)
        except subprocess.TimeoutExpired:
            say(f"{what}: {time.monotonic() - started:.0f} s so far")


def _keep(hunt: Hunt, folder: Path) -> None:
    """After every run, so that a hunt that is ended early has its results too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "flakes.json").write_bytes(msgspec.json.format(msgspec.json.encode(hunt), indent=1) + b"\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make flakes", description=__doc__)
    parser.add_argument("tiers", nargs="*", metavar="TIER", help=f"of {', '.join(TIERS)}; all of them by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hogs", type=int, default=os.cpu_count() or 1, help="busy processes, by default one a core")
    options = parser.parse_args(arguments)
    if unknown := set(options.tiers) - set(TIERS):
        parser.error(f"no such tier, or not one for random order: {', '.join(sorted(unknown))}")
    options.tiers = options.tiers or list(TIERS)
    return options


def _asked_to_end(number: int, frame: FrameType | None) -> None:
    """Leave by an exception, so that all that runs is ended."""
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
