"""The table of faults: whole, of tests that there are, and written down in docs/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.measurements import Measurement, in_words
from tests.chaos.reliability_page import PAGE, exists, page, without_measured
from tests.chaos.rows import QUICK, ROWS


def test_every_fault_has_its_row() -> None:
    assert [row.number for row in ROWS] == list(range(1, 32))
    assert len(QUICK) >= 31 / 3


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_each_row_names_tests_that_there_are(row: object) -> None:
    tests = getattr(row, "tests", ())
    assert [test for test in tests if not exists(test)] == []
    assert tests or getattr(row, "gap", "")


def test_a_test_is_found_by_its_name_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("class TestIt:\n    def test_one(self): ...\nTestIts = Machine.TestCase\n")
    named = {
        name: exists(f"test_it.py::{name}", tmp_path) for name in ("TestIt::test_one", "test_one", "TestIts::runTest")
    }
    assert named == {"TestIt::test_one": True, "test_one": False, "TestIts::runTest": True}
    assert not exists("test_other.py::test_one", tmp_path)


def test_the_page_is_that_of_the_table() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert without_measured(written) == without_measured(page([])), "run `make chaos`"


def test_what_was_measured_stays_until_it_is_measured_again() -> None:
    first = page([Measurement(3, "back", 1.5), Measurement(3, "back", 2.25), Measurement(4, "exact", 1, "")])
    assert "| back: 1.5 to 2.25 s |" in first
    again = page([Measurement(4, "exact", 2, "")], first)
    assert "| back: 1.5 to 2.25 s |" in again
    assert "| exact: 2 |" in again


@pytest.mark.parametrize(("value", "kept"), [(0.9, False), (1.0, True), (2.0, True), (2.1, False)])
def test_a_budget_has_two_ends(value: float, kept: bool) -> None:  # noqa: FBT001 - a parameter
    assert Measurement(1, "x", value, at_least=1, at_most=2).kept is kept
    assert Measurement(1, "x", value, at_least=1, at_most=2).budget == "≤ 2 and ≥ 1 s"
    assert in_words([Measurement(1, "x", 3.0)]) == "x: 3 s"
