from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reporting import record, steps
from tests.reporting.budgets import BY_NAME, TIERS, Tier
from tests.reporting.record import Run
from tests.reporting.tiers import outcomes_of
from tests.requirements.found import ROOT

GOOD, BAD = (f"{sys.executable} -S -c 'raise SystemExit({status})'" for status in (0, 3))


def test_nothing_runs_after_a_tier_that_failed(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(tier: Tier) -> int:
        ran.append(tier.name)
        record.keep(tmp_path, tier.name, Run(seconds=1, budget=2, passed=7))
        return 2 if tier.name == "cluster" else 0

    outcomes = outcomes_of(TIERS, run, tmp_path)
    assert ran == ["check", "unit", "cluster"]
    assert [outcome.status for outcome in outcomes] == [0, 0, 2, None, None, None]
    assert [outcome.passed for outcome in outcomes] == [7, 7, 7, 0, 0, 0]


def test_a_tier_that_tells_nothing_has_not_the_results_of_the_run_before(tmp_path: Path) -> None:
    record.keep(tmp_path, "unit", Run(seconds=1, budget=2, passed=7))
    (outcome,) = outcomes_of([BY_NAME["unit"]], lambda tier: 2, tmp_path)
    assert (outcome.passed, outcome.failed) == (0, 1)


def test_all_tiers_end_with_a_table_and_a_runner_s_closing_line(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text("check:\n\t@echo checked\nunit:\n\t@exit 3\n")
    command = [sys.executable, "-m", "tests.reporting.tiers"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 2
    assert lines[:3] == ["", "=== check", "checked"]
    assert [line.split()[:3] for line in lines[-8:-2]] == [
        ["unit", "0", "1"],
        ["cluster", "not", "run"],
        ["console", "not", "run"],
        ["engine", "not", "run"],
        ["node", "not", "run"],
        ["all", "0", "1"],
    ]
    assert lines[-1] == "0 passed, 1 failed"


def test_steps_are_counted_and_timed_like_tests(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert steps.main(["check", GOOD, f"{GOOD} again"], tmp_path) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].endswith(" s of its budget of 40 s; the slowest of 2:")
    assert lines[-1] == "2 passed, 0 failed"
    assert set(record.read(tmp_path)["check"].tests) == {GOOD, f"{GOOD} again"}


def test_no_step_runs_after_one_that_failed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert steps.main(["check", GOOD, BAD, f"{GOOD} again"], tmp_path) == 3
    run = record.read(tmp_path)["check"]
    assert (run.passed, run.failed, set(run.tests)) == (1, (BAD,), {GOOD, BAD})
    assert capfd.readouterr().out.splitlines()[-1] == "1 passed, 1 failed"
