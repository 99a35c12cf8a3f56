from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.reporting import flakes, record
from tests.reporting.hogs import guarded, hogs
from tests.reporting.hunt import TierRun, hunted, listing, progress
from tests.requirements.found import ROOT

ENDED_SECONDS = 60
MAKEFILE = """\
unit:
	@echo unit $$PYTEST_ADDOPTS; exit $$(cat status)
"""
HUNTER = "import sys; from tests.reporting.flakes import main; sys.exit(main(['--rounds=2', '--hogs=2', 'unit']))"


def run(turn: int, tier: str, *failed: str, status: int = 0) -> TierRun:
    status = status or int(bool(failed))
    log = f"round-{turn}/{tier}.log"
    return TierRun(
        round=turn, tier=tier, seed=turn, status=status, seconds=1, passed=9, failed=failed, skipped=0, log=log
    )


def test_what_failed_is_listed_with_how_often() -> None:
    runs = [run(1, "unit", "a"), run(1, "engine", "c"), run(2, "unit"), run(3, "unit", "b", "a")]
    hunt = hunted(2, runs, {})
    assert {name: (flake.failed, flake.runs, flake.seeds) for name, flake in hunt.flakes.items()} == {
        "a": (2, 3, (1, 3)),
        "b": (1, 3, (3,)),
        "c": (1, 1, (1,)),
    }
    lines = listing(hunt)
    assert lines[:5] == [
        "2 of 3  a",
        "    seeds  1, 3",
        "    logs   round-1/unit.log, round-3/unit.log",
        "    alone  .venv/bin/pytest -q a --randomly-seed=1",
        "    again  PYTEST_ADDOPTS=--randomly-seed=1 make unit",
    ]
    assert lines[-1] == "36 passed, 4 failed"


def test_a_tier_that_ended_badly_without_a_failed_test_is_listed_too() -> None:
    hunt = hunted(2, [run(1, "unit", status=2)], {})
    (name,) = hunt.flakes
    assert name == "unit: no test failed, status 2"
    assert hunt.flakes[name].alone == hunt.flakes[name].again
    assert listing(hunt)[-1] == "9 passed, 1 failed"


def test_clean_rounds_say_so() -> None:
    assert listing(hunted(2, [run(1, "unit")], {})) == [
        "nothing failed in 1 runs beside 2 busy processes",
        "",
        "9 passed, 0 failed",
    ]
    assert progress(run(1, "unit", "a"), 3) == ["round 1 of 3, unit, seed 1: 9 passed, 1 failed, 1 s", "  failed: a"]


@pytest.mark.parametrize("status", [0, 1])
def test_rounds_run_with_seeds_of_their_own_in_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "status").write_text(str(status))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x")
    first, second = flakes.rounds(2, ["unit"], record.FOLDER / "flakes")
    assert first.seed != second.seed
    assert bool(first.status) == bool(status)
    said = Path(first.log).read_text().splitlines()[0]
    assert said == f"unit -x --randomly-seed={first.seed} --results-in=.results/flakes/round-1"


def test_busy_processes_end_with_the_run() -> None:
    with hogs(2) as started:
        assert len(started) == 2
        assert all(map(psutil.pid_exists, started))
    assert not any(map(psutil.pid_exists, started))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_of_a_hunt_that_is_ended(tmp_path: Path, number: int) -> None:
    (tmp_path / "Makefile").write_text("unit:\n\t@touch begun; sleep 600\n")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HUNTER]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as hunter:
        assert hunter.stdout is not None
        assert "round 1, unit, seed" in hunter.stdout.readline()
        below = psutil.Process(hunter.pid).children(recursive=True)
        hunter.send_signal(number)
    _, alive = psutil.wait_procs(below, timeout=ENDED_SECONDS)
    assert len(below) >= 2
    assert not alive


def test_what_ran_under_the_guard_is_ended_with_all_below_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with guarded(["sh", "-c", "sleep 600 & echo $!; wait"], log=log, grace=0.0):
        while not (said := log.read_text()).endswith("\n"):
            time.sleep(0.01)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(said)).wait(ENDED_SECONDS)
