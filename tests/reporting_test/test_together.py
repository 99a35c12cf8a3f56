"""Small runs of pytest with several processes, some of whose tests are to stay in one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from e2e.engine.vllm import VllmOptions
from e2e.together import ALONE, IMPORTS_VLLM, LONGEST, engine_name, longest, together
from tests.requirements.found import ROOT

CONFTEST = """
import pytest

from e2e.conftest import pytest_xdist_make_scheduler
from e2e.together import ALONE

@pytest.fixture(scope="session", params=[ALONE])
def own():
    return

@pytest.fixture
def by_way_of(own):
    return
"""
TESTS = """
import pytest

def test_first(own): ...

@pytest.mark.parametrize("number", range(6))
def test_other(number): ...

@pytest.mark.parametrize("number", range(3))
def test_more(number, by_way_of): ...

def test_not_alone(): ...
"""


PLUGIN = engine_name(VllmOptions(plugin=True))


@pytest.mark.parametrize(
    ("test", "unit"),
    [
        (f"e2e/engine/test_a.py::test_x[{PLUGIN}]", PLUGIN),
        (f"e2e/engine/test_b.py::test_y[False-{PLUGIN}-a::b]", PLUGIN),
        ("e2e/engine/test_b.py::test_z[True]", "e2e/engine/test_b.py"),
        ("tests/worker/test_a.py::test_x[1]", IMPORTS_VLLM),
        ("e2e/cluster/test_a.py::test_x[alone-3]", ALONE),
        ("e2e/cluster/test_a.py::test_leaves_it_alone", "e2e/cluster/test_a.py::test_leaves_it_alone"),
        ("tests/chart/test_a.py::test_x[a]", "tests/chart/test_a.py::test_x[a]"),
    ],
)
def test_what_belongs_together(test: str, unit: str) -> None:
    assert together(test) == unit


def test_the_longest_come_first_and_are_there() -> None:
    assert longest(["b", *reversed(LONGEST), "a"]) == list(LONGEST)
    assert longest(["a"]) == []
    assert [file for file in LONGEST if not (ROOT / file).is_file()] == []


def test_what_is_longest_is_begun_first(tmp_path: Path) -> None:
    """Before what has more tests."""
    (tmp_path / "e2e/engine").mkdir(parents=True)
    (tmp_path / "e2e/engine/test_demo.py").write_text("def test_long(): ...\n")
    (tmp_path / "e2e/engine/test_many.py").write_text(TESTS)
    ran = _passed(tmp_path, "-n", "1")
    assert ran[0][1] == "e2e/engine/test_demo.py::test_long"
    assert len(ran) == 12


def test_engines_are_called_by_all_their_options() -> None:
    assert engine_name(VllmOptions(plugin=True)) == PLUGIN != engine_name(VllmOptions())


def test_one_process_runs_all_that_is_to_be_alone(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text(TESTS)
    ran = defaultdict(list)
    for process, test in _passed(tmp_path, "-n", "2"):
        ran["alone" if "alone]" in test or "[alone" in test else "others"].append(process)
    assert len(ran["alone"]) == 8
    assert len(set(ran["alone"])) == 1
    assert len(ran["others"]) == 14
    assert len({*ran["alone"], *ran["others"]}) == 2


def _passed(folder: Path, *options: str) -> list[tuple[str, str]]:
    """Processes and tests of a run there, in the order in which they ended."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "xdist", *options, "--dist", "loadgroup"]
    own = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment = os.environ | own | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (line.partition(" PASSED ") for line in done.stdout.splitlines())
    return [(process.split()[0], test.split(" ")[0]) for process, _, test in lines if test]
