from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.reporting import record
from tests.reporting.record import FILE, Run

RUN = Run(seconds=1.25, budget=2, passed=1, failed=("b",), skipped={"why": 3}, tests={"a": 0.1234567, "b": 1.0})


def test_a_run_replaces_that_of_its_tier_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    assert record.read(folder) == {}
    record.keep(folder, "unit", RUN)
    record.keep(folder, "engine", Run(seconds=5, budget=6))
    record.keep(folder, "unit", Run(seconds=3, budget=2))
    assert record.read(folder) == {"engine": Run(seconds=5, budget=6), "unit": Run(seconds=3, budget=2)}


def test_a_run_is_kept_with_its_tests_to_the_millisecond(tmp_path: Path) -> None:
    record.keep(tmp_path, "unit", RUN)
    kept = record.read(tmp_path)["unit"]
    assert (kept.seconds, kept.tests) == (1.2, {"a": 0.123, "b": 1.0})
    assert (kept.passed, kept.failed, kept.skipped) == (1, ("b",), {"why": 3})


def test_a_tier_that_starts_is_forgotten(tmp_path: Path) -> None:
    record.forget(tmp_path, "unit")
    record.keep(tmp_path, "unit", RUN)
    record.keep(tmp_path, "node", RUN)
    record.forget(tmp_path, "unit")
    assert set(record.read(tmp_path)) == {"node"}


def test_a_file_of_another_kind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"unit": 3}')
    record.keep(tmp_path, "node", RUN)
    assert set(record.read(tmp_path)) == {"node"}


def test_tiers_that_end_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    names = [f"tier-{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: record.keep(tmp_path, name, RUN), names))
    assert set(record.read(tmp_path)) == set(names)
    assert {path.name for path in tmp_path.iterdir()} == {FILE, f".{FILE}.lock"}
