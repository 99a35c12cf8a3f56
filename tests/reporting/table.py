"""What `make test` ends with: its tiers in a table, why tests were skipped, and all of them in one line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.reporting.budgets import WHOLE_SECONDS, Tier
from tests.reporting.closing import columns, is_over, spent, totals
from tests.reporting.record import Run

HEAD: Final = ("tier", "passed", "failed", "skipped", "seconds", "budget")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a tier ended; ``status`` is None where it was not run, ``run`` where it told nothing."""

    tier: Tier
    status: int | None = None
    seconds: float = 0.0
    run: Run | None = None

    @property
    def passed(self) -> int:
        return self.run.passed if self.run else 0

    @property
    def failed(self) -> int:
        """A tier that ended badly is a failure, also where no test failed or none was reached."""
        return max(len(self.run.failed) if self.run else 0, int(bool(self.status)))

    @property
    def skipped(self) -> int:
        return sum(self.run.skipped.values()) if self.run else 0


def report(outcomes: Sequence[Outcome]) -> list[str]:
    """All lines; the last one is of the kind that ends a test runner's output."""
    whole = sum(outcome.seconds for outcome in outcomes)
    rows = [HEAD, *map(_row, outcomes), ("all", *_counts(outcomes), _number(whole), _number(WHOLE_SECONDS))]
    return [*columns(rows), *_remarks(outcomes, whole), "", totals(*_sums(outcomes))]


def _row(outcome: Outcome) -> tuple[str, ...]:
    budget = _number(outcome.tier.seconds)
    if outcome.status is None:
        return (outcome.tier.name, "not run", "", "", "", budget)
    return (outcome.tier.name, *_counts([outcome]), _number(outcome.seconds), budget)


def _counts(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(map(_number, _sums(outcomes)))


def _sums(outcomes: Sequence[Outcome]) -> tuple[int, int, int]:
    return (
        sum(outcome.passed for outcome in outcomes),
        sum(outcome.failed for outcome in outcomes),
        sum(outcome.skipped for outcome in outcomes),
    )


def _remarks(outcomes: Sequence[Outcome], whole: float) -> list[str]:
    """What is unusual: budgets that were crossed, and skipped tests with their reasons."""
    over = [_over(outcome.tier.name, outcome.seconds, outcome.tier.seconds) for outcome in outcomes]
    lines = [*over, _over("all", whole, WHOLE_SECONDS), *(line for outcome in outcomes for line in _skips(outcome))]
    told = list(filter(None, lines))
    return ["", *told] if told else []


def _over(name: str, seconds: float, budget: float) -> str:
    return f"{name}: {spent(seconds, budget)}" if is_over(seconds, budget) else ""


def _skips(outcome: Outcome) -> list[str]:
    reasons = sorted(outcome.run.skipped.items(), key=lambda reason: (-reason[1], reason[0])) if outcome.run else []
    return [f"{outcome.tier.name}: {count} skipped: {why}" for why, count in reasons]


def _number(number: float) -> str:
    return f"{number:,.0f}"
