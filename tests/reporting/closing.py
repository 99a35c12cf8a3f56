"""The last lines of a tier: its time beside its budget, and its slowest tests."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from tests.reporting.excerpt import cut
from tests.reporting.record import Run

SLOWEST: Final = 10


def closing(tier: str, run: Run) -> list[str]:
    """The lines; the first one says so where the budget was crossed."""
    slowest = heapq.nlargest(SLOWEST, run.tests.items(), key=lambda test: test[1])
    head = f"{tier}: {spent(run.seconds, run.budget)}; the slowest of {len(run.tests)}:"
    return [head, *(cut(f"{seconds:8.1f} s  {name}") for name, seconds in slowest)]


def spent(seconds: float, budget: float) -> str:
    """Seconds in words that tell whether they were too many."""
    if is_over(seconds, budget):
        return f"{seconds:,.0f} s, OVER its budget of {budget:,.0f} s"
    return f"{seconds:,.0f} s of its budget of {budget:,.0f} s"


def is_over(seconds: float, budget: float) -> bool:
    return seconds > budget


def totals(passed: int, failed: int, skipped: int) -> str:
    """One line as test runners end with, which programs that read the output of CI look for."""
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def columns(rows: Iterable[Iterable[str]]) -> list[str]:
    """A table: the first column to the left, all others, which are numbers, to the right."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(_padded(row, widths)).rstrip() for row in cells]


def _padded(row: list[str], widths: list[int]) -> Iterable[str]:
    yield row[0].ljust(widths[0])
    yield from (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
