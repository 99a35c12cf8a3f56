"""What a hunt for flaky tests found: runs of tiers, and of each test that failed how often and how to see it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tests.reporting.budgets import BY_NAME
from tests.reporting.closing import totals
from tests.reporting.command import again, alone

NO_TEST: Final = "no test failed"
"""Stands for the tests that failed where a tier ended badly before or after them."""


class TierRun(msgspec.Struct, frozen=True, kw_only=True):
    """One tier in one round; ``log`` is the file with its output."""

    round: int
    tier: str
    seed: int
    status: int
    seconds: float
    passed: int
    failed: tuple[str, ...]
    skipped: int
    log: str

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of tests, or one that tells that the tier itself ended badly."""
        return self.failed or ((f"{self.tier}: {NO_TEST}, status {self.status}",) if self.status else ())


class Flake(msgspec.Struct, frozen=True, kw_only=True):
    """A test that failed: how often of how many runs, and the commands that run it, and its tier, as they were."""

    failed: int
    runs: int
    seeds: tuple[int, ...]
    logs: tuple[str, ...]
    alone: str
    again: str


class Hunt(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, as it is kept in ``.results/flakes.json``."""

    hogs: int
    runs: tuple[TierRun, ...] = ()
    flakes: dict[str, Flake] = {}


def hunted(hogs: int, runs: Sequence[TierRun], environment: Mapping[str, str]) -> Hunt:
    """The runs with what failed in them, most often first."""
    names = dict.fromkeys(name for run in runs for name in run.failures)
    flakes = {name: _flake(name, runs, environment) for name in names}
    ordered = sorted(flakes.items(), key=lambda flake: (-flake[1].failed, flake[0]))
    return Hunt(hogs=hogs, runs=tuple(runs), flakes=dict(ordered))


def _flake(name: str, runs: Sequence[TierRun], environment: Mapping[str, str]) -> Flake:
    bad = [run for run in runs if name in run.failures]
    tier = bad[0].tier
    order = again(BY_NAME[tier].target, seed=bad[0].seed)
    return Flake(
        failed=len(bad),
        runs=sum(run.tier == tier for run in runs),
        seeds=tuple(run.seed for run in bad),
        logs=tuple(run.log for run in bad),
        alone=alone(name, seed=bad[0].seed, environment=environment) if name in bad[0].failed else order,
        again=order,
    )


def progress(run: TierRun, rounds: int) -> list[str]:
    """What is said when a tier of a round has ended."""
    head = f"round {run.round} of {rounds}, {run.tier}, seed {run.seed}: "
    head += f"{totals(run.passed, len(run.failures), run.skipped)}, {run.seconds:.0f} s"
    return [head, *(f"  failed: {name}" for name in run.failures)]


def listing(hunt: Hunt) -> list[str]:
    """What failed and how often; the last line is one that ends a test runner's output."""
    lines = [line for name, flake in hunt.flakes.items() for line in _described(name, flake)]
    runs = hunt.runs
    sums = (sum(run.passed for run in runs), sum(len(run.failures) for run in runs), sum(run.skipped for run in runs))
    return [*(lines or [f"nothing failed in {len(runs)} runs beside {hunt.hogs} busy processes"]), "", totals(*sums)]


def _described(name: str, flake: Flake) -> list[str]:
    return [
        f"{flake.failed} of {flake.runs}  {name}",
        f"    seeds  {', '.join(map(str, flake.seeds))}",
        f"    logs   {', '.join(flake.logs)}",
        f"    alone  {flake.alone}",
        f"    again  {flake.again}",
    ]
