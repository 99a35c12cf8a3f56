from __future__ import annotations

from tests.reporting.budgets import BY_NAME, TIERS, WHOLE_SECONDS
from tests.reporting.closing import closing
from tests.reporting.record import Run
from tests.reporting.table import Outcome, report

CHECK, UNIT, CLUSTER = (BY_NAME[name] for name in ("check", "unit", "cluster"))
GREEN = Run(seconds=200, budget=240, passed=5600, skipped={"no PostgreSQL": 2, "no Go": 10})


def test_budgets_are_those_of_the_whole_but_for_what_runs_side_by_side() -> None:
    assert [tier.name for tier in TIERS] == ["check", "unit", "cluster", "console", "engine", "node"]
    assert abs(sum(tier.seconds for tier in TIERS) - WHOLE_SECONDS) < 60


def test_a_tier_ends_with_its_time_and_its_ten_slowest_tests() -> None:
    run = Run(seconds=12, budget=240, tests={f"test-{number}": float(number) for number in range(20)})
    head, *slowest = closing("unit", run)
    assert head == "unit: 12 s of its budget of 240 s; the slowest of 20:"
    assert [line.split()[-1] for line in slowest] == [f"test-{number}" for number in range(19, 9, -1)]


def test_a_tier_says_that_it_took_too_long() -> None:
    assert closing("unit", Run(seconds=1241, budget=240))[0].startswith("unit: 1,241 s, OVER its budget of 240 s;")


def test_tiers_are_told_in_one_table() -> None:
    check = Outcome(CHECK, 0, 95.4, Run(seconds=95, budget=60, passed=6))
    assert report([check, Outcome(UNIT, 0, 203.6, GREEN)]) == [
        "tier   passed  failed  skipped  seconds  budget",
        "check       6       0        0       95      40",
        "unit    5,600       0       12      204     210",
        "all     5,606       0       12      299   1,310",
        "",
        "check: 95 s, OVER its budget of 40 s",
        "unit: 10 skipped: no Go",
        "unit: 2 skipped: no PostgreSQL",
        "",
        "5606 passed, 0 failed, 12 skipped",
    ]


def test_tiers_that_were_not_run_are_shown_as_such() -> None:
    lines = report([Outcome(UNIT, 2, 10, Run(seconds=9, budget=240, passed=3, failed=("a", "b"))), Outcome(CLUSTER)])
    assert lines[2].split() == ["cluster", "not", "run", "150"]
    assert lines[-1] == "3 passed, 2 failed"


def test_a_tier_that_ended_badly_without_a_failed_test_is_a_failure() -> None:
    for run in (None, Run(seconds=9, budget=240, passed=3)):
        assert report([Outcome(UNIT, 2, 10, run)])[-1].endswith(" passed, 1 failed")
