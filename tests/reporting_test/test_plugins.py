"""Small runs of pytest with the plugins, as a person sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.reporting import record
from tests.reporting.budgets import BY_NAME
from tests.reporting.record import Run
from tests.requirements.found import ROOT

CONFTEST = """
import pytest

pytest_plugins = ("tests.reporting.durations", "tests.reporting.failures")

@pytest.fixture
def vllm_server():
    print("\\n".join(f"set-up {number}" for number in range(100)))
    return "\\n".join(f"engine {number}" for number in range(100))

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed and "vllm_server" in item.funcargs:
        report.sections.append(("vLLM log", item.funcargs["vllm_server"]))
    return report
"""
TESTS = """
import logging
import pytest
import sys

def deep(levels):
    if levels:
        return deep(levels - 1) if levels % 2 else deeper(levels)
    raise ValueError("the last word\\n" + "\\n".join(f"detail {number}" for number in range(300)))

def deeper(levels):
    try:
        return deep(levels - 1)
    except ValueError as problem:
        raise RuntimeError("x" * 5000) from problem

def loud():
    for number in range(200):
        print("printed", number)
        print("complained", number, file=sys.stderr)
        logging.getLogger("it").error("logged %d", number)

def test_giant(vllm_server):
    loud()
    deep(60)

def test_long_comparison(vllm_server):
    assert [{"number": number} for number in range(500)] == [{"number": number + 1} for number in range(500)]

def test_with_its_own_engine(tmp_path):
    (tmp_path / "far-0.engine.log").write_text("\\n".join(f"line {number}" for number in range(50)))
    assert False

@pytest.fixture
def broken():
    loud()
    raise OSError("no such engine")

def test_set_up(broken): ...

@pytest.fixture
def left():
    yield
    raise OSError("something is left")

def test_clean_up(left): ...

@pytest.mark.parametrize("number", [1, 2, 3])
def test_good(number): ...

@pytest.mark.parametrize("number", [1, 2])
def test_skipped(number):
    pytest.skip("no Go")

@pytest.mark.xfail(reason="not yet")
def test_expected():
    assert False
"""
LIMIT = 60


@dataclass(frozen=True)
class Result:
    folder: Path
    out: str
    status: int

    @property
    def run(self) -> Run:
        return record.read(self.folder / "results")["unit"]

    def shown(self, test: str) -> list[str]:
        """What is printed of a failed test, from its name's line on."""
        lines = self.out.splitlines()
        start = next(at for at, line in enumerate(lines) if line.startswith("___") and line.split()[-2] == test)
        end = next(at for at in range(start + 1, len(lines)) if lines[at].startswith(("___", "===")))
        return lines[start:end]


def ran(folder: Path, *arguments: str, tests: str = TESTS) -> Result:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -ra --tb=short --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "randomly", "-p", "xdist"]
    own = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": "1", "COLUMNS": "120"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | own
    command += ["--randomly-seed=7", "--junitxml=results/unit.xml", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr, done.stderr
    return Result(folder, done.stdout, done.returncode)


@pytest.fixture(scope="module", params=[[], ["-n", "2"]], ids=["one process", "xdist"])
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return ran(tmp_path_factory.mktemp("run"), *request.param)


@pytest.mark.parametrize("test", ["test_giant", "test_long_comparison", "test_with_its_own_engine", "test_set_up"])
def test_a_failure_is_shown_in_under_sixty_lines(result: Result, test: str) -> None:
    shown = result.shown(test)
    assert len(shown) < LIMIT
    assert max(map(len, shown)) < 300
    assert shown[-1] == f".venv/bin/pytest -q test_it.py::{test} --randomly-seed=7"


def test_a_giant_failure_keeps_what_matters(result: Result) -> None:
    shown = "\n".join(result.shown("test_giant"))
    assert "test_it.py:" in shown
    assert "E   RuntimeError: xxx" in shown
    assert "engine 99\n" in shown
    assert "logged 199" in shown
    assert "printed 199" in shown
    assert "lines more" in shown


def test_an_engine_of_the_test_s_own_shows_its_log(result: Result) -> None:
    shown = result.shown("test_with_its_own_engine")
    title = next(line for line in shown if "far-0.engine.log log" in line)
    assert shown[shown.index(title) + 14] == "line 49"


def test_the_list_at_the_end_has_a_line_a_failure(result: Result) -> None:
    failed = [line for line in result.out.splitlines() if line.startswith(("FAILED ", "ERROR test_it.py"))]
    assert len(failed) == 5
    assert all(len(line) < 400 for line in failed)
    assert any("test_set_up - OSError: no such engine" in line for line in failed)


def test_a_run_of_a_tier_ends_with_its_time_and_its_slowest_tests(result: Result) -> None:
    *before, last = result.out.splitlines()
    assert last.startswith("3 failed, 4 passed, 2 skipped, 1 xfailed, 2 errors in ")
    assert f"s of its budget of {BY_NAME['unit'].seconds:.0f} s; the slowest of 11:" in before[-11]
    assert result.status == 1


def test_a_run_of_a_tier_is_kept(result: Result) -> None:
    run = result.run
    names = ("test_clean_up", "test_giant", "test_long_comparison", "test_set_up", "test_with_its_own_engine")
    assert run.failed == tuple(f"test_it.py::{name}" for name in names)
    assert run.skipped == {"no Go": 2, "fails as expected: not yet": 1}
    assert run.passed == 3
    assert len(run.tests) == 11
    assert 0 < sum(run.tests.values()) < 2 * run.seconds


def test_the_junit_file_has_failures_whole(result: Result) -> None:
    suite = ET.parse(result.folder / "results" / "unit.xml")  # noqa: S314 - pytest's own
    failure = next(case for case in suite.iter("testcase") if case.get("name") == "test_giant").find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "detail 299" in failure.text


def test_results_can_be_put_elsewhere(tmp_path: Path) -> None:
    ran(tmp_path, "--results-in=other", tests="def test_it(): ...\n")
    assert record.read(tmp_path / "other")["unit"].passed == 1
    assert (tmp_path / "other" / "unit.xml").exists()
    assert not (tmp_path / "results").exists()


def test_a_file_that_cannot_be_read_is_a_failure_and_whole_where_asked(tmp_path: Path) -> None:
    result = ran(tmp_path, "-vv", tests="\n".join([*(f"# {number}" for number in range(99)), "import no_such_thing"]))
    assert result.run.failed == ("test_it.py",)
    assert "run it alone" not in result.out
    assert result.status == 2
