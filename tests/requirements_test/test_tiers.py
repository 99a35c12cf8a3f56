"""Each tier collects only the folders that its tests are in: to import all the others takes longer than some of it."""

from __future__ import annotations

from pathlib import Path

from tests.requirements.found import ROOT


def test_tests_of_a_cluster_are_where_their_tier_looks() -> None:
    others = [file for file in (ROOT / "tests").rglob("*.py") if file != Path(__file__)]
    marked = [file.relative_to(ROOT) for file in others if "pytest.mark.cluster" in file.read_text()]
    assert {file.parts[:2] for file in marked} == {("tests", "chart")}
