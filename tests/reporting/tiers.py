"""``python -m tests.reporting.tiers [TIER ...]``: run tiers one after another until one fails, and end with a table."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.reporting import record
from tests.reporting.budgets import BY_NAME, TIERS, Tier
from tests.reporting.table import Outcome, report

PROGRESS_SECONDS: Final = 60.0
"""After each of these a tier says that it still runs, where nobody watches a terminal."""

Run = Callable[[Tier], int]
"""Runs a tier and returns its exit status."""


def main(names: Sequence[str]) -> int:
    """The exit status of the tier that failed, or 0."""
    outcomes = outcomes_of([BY_NAME[name] for name in names] or TIERS, made, record.FOLDER)
    say("", *report(outcomes))
    return next((outcome.status for outcome in outcomes if outcome.status), 0)


def outcomes_of(tiers: Sequence[Tier], run: Run, folder: Path) -> list[Outcome]:
    """Those after one that failed are not run."""
    outcomes: list[Outcome] = []
    for tier in tiers:
        failed = any(outcome.status for outcome in outcomes)
        outcomes.append(Outcome(tier) if failed else _outcome(tier, run, folder))
    return outcomes


def _outcome(tier: Tier, run: Run, folder: Path) -> Outcome:
    say("", f"=== {tier.name}")
    record.forget(folder, tier.name)
    started = time.monotonic()
    status = run(tier)
    return Outcome(tier, status, time.monotonic() - started, record.read(folder).get(tier.name))


def made(tier: Tier) -> int:
    """Run `make` for a tier; its output is this process's own."""
    with subprocess.Popen(["make", "--no-print-directory", tier.target]) as process:
        minutes = 0
        while True:
            try:
                return process.wait(PROGRESS_SECONDS)
            except subprocess.TimeoutExpired:
                minutes += 1
                _still_running(tier, minutes * PROGRESS_SECONDS)


def _still_running(tier: Tier, seconds: float) -> None:
    """On standard error: standard output is the tier's own."""
    if not sys.stderr.isatty():
        sys.stderr.write(f"\n=== {tier.name}: {seconds:.0f} s so far, budget {tier.seconds:.0f} s\n")
        sys.stderr.flush()


def say(*lines: str) -> None:
    """At once, before what a child prints next."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
