"""What the worker plugin promises of each measured row; rows that no bar names are for information."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bench.rows import Row


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit on one column of the rows of a part whose name matches ``pattern``."""

    part: str
    pattern: str
    column: str
    limit: float
    at_least: bool = False

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit

    def __str__(self) -> str:
        shown = f"{self.limit:g}" + "x" * (self.column == "ratio")
        return ("≥ " if self.at_least else "≤ ") + shown


BARS: Final = (
    Bar("overhead", r"upper end", "ours", 3.0),
    Bar("preemption", r"speed of a survivor", "ratio", 1.0, at_least=True),
    Bar("budget", r"largest", "ours", 1.0),
    Bar("snapshot", r"wall", "ours", 1.0),
    Bar("snapshot", r"longer by", "ours", 5.0),
    Bar("tokens", r": 10k tokens, 90 % shared|grows by a paragraph", "ratio", 0.2),
    Bar("keys", r"with the cache", "ratio", 0.6),
    Bar("keys", r"stock", "ratio", 0.2),
    Bar("load", r"refused on an idle", "ours", 100.0),
)


def judged(part: str, row: Row) -> Row:
    """The row with its bar and whether it is kept, where it has one and did not bring its own."""
    if row.get("bar"):
        return row
    for bar in BARS:
        if bar.part == part and re.search(bar.pattern, row["row"]) and row[bar.column] is not None:
            return {**row, "bar": str(bar), "kept": bar.holds(row[bar.column])}
    return row
