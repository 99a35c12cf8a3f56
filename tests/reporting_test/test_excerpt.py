from __future__ import annotations

import pytest

from tests.reporting.command import again, alone
from tests.reporting.excerpt import ALONE, LINES, WIDTH, Failure, cut, excerpt, shortened

TRACE = [*(f"frame {number}" for number in range(300)), "E   first", *(f"E   more {number}" for number in range(200))]
LOG = "\n".join(f"logged {number}" for number in range(100))


@pytest.mark.parametrize("outputs", [0, 1, 3, 9])
@pytest.mark.parametrize("logs", [0, 1, 2, 4])
@pytest.mark.parametrize("lines", [0, 1, 20, 400])
def test_a_failure_has_few_lines_whatever_there_is_of_it(outputs: int, logs: int, lines: int) -> None:
    text = "\n".join(map(str, range(lines)))
    sections = [(f"Captured stdout {number}", text) for number in range(outputs)]
    sections += [(f"vLLM {number} log", text) for number in range(logs)]
    shown = excerpt(Failure(TRACE[:lines], sections), "command")
    assert len(shown.trace) + sum(1 + len(text.splitlines()) for _, text in shown.sections) <= LINES
    assert shown.sections[-1] == (ALONE, "command")
    if lines > 20:
        assert len(shown.trace) > 20


def test_a_short_failure_is_whole() -> None:
    sections = [("Captured stdout setup", "a\n"), ("Captured log call", "b\nc\n"), ("Captured stderr call", "\n")]
    shown = excerpt(Failure(["one", "E   two"], sections), "command")
    assert shown.trace == ["one", "E   two"]
    assert shown.sections == [("Captured stdout setup", "a"), ("Captured log call", "b\nc"), (ALONE, "command")]


def test_the_end_of_a_log_is_shown() -> None:
    shown = excerpt(Failure(["one"], [("vLLM log", LOG)]), "command")
    assert shown.sections[0] == ("vLLM log", "\n".join(LOG.splitlines()[-14:]))


def test_a_long_traceback_keeps_its_beginning_what_was_raised_and_its_end() -> None:
    shown = shortened(TRACE, 32)
    assert len(shown) == 32
    assert shown[:10] == TRACE[:10]
    assert shown[10] == "... 290 lines more (with -vv, and in the JUnit file) ..."
    assert shown[11:21] == TRACE[300:310]
    assert shown[-10:] == TRACE[-10:]


def test_a_long_traceback_that_raises_nothing_keeps_both_ends() -> None:
    trace = [f"frame {number}" for number in range(300)]
    shown = shortened(trace, 32)
    assert (shown[0], shown[-1]) == (trace[0], trace[-1])
    assert len(shown) <= 32


def test_a_long_line_is_cut() -> None:
    assert cut("x" * WIDTH) == "x" * WIDTH
    assert cut("x" * (WIDTH + 7)) == "x" * WIDTH + "... (7 characters more)"


def test_the_command_has_the_seed_and_what_tests_depend_on() -> None:
    environment = {"HYPOTHESIS_PROFILE": "nightly", "HOME": "somewhere"}
    assert (
        alone("tests/test_it.py::test_it[a b]", seed=12, environment=environment)
        == "HYPOTHESIS_PROFILE=nightly .venv/bin/pytest -q 'tests/test_it.py::test_it[a b]' --randomly-seed=12"
    )
    assert alone("e2e/node/test_it.py", seed=None, environment={}) == (
        ".venv/bin/pytest -q e2e/node/test_it.py -p no:randomly"
    )
    assert again("unit", seed=3) == "PYTEST_ADDOPTS=--randomly-seed=3 make unit"
