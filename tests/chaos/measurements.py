"""What scenarios measure: a line of JSON each, in .results/chaos.jsonl; one that misses its budget fails its test."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / ".results" / "chaos.jsonl"


@dataclass(frozen=True, slots=True)
class Measurement:
    """``at_most`` and ``at_least`` are the budget; None is no bound."""

    row: int
    what: str
    value: float
    unit: str = "s"
    at_most: float | None = None
    at_least: float | None = None

    @property
    def kept(self) -> bool:
        """Whether it is within its budget."""
        below = self.at_most is None or self.value <= self.at_most
        return below and (self.at_least is None or self.value >= self.at_least)

    @property
    def budget(self) -> str:
        """The bound in words."""
        bounds = [
            f"{sign} {bound:g}" for sign, bound in (("≤", self.at_most), ("≥", self.at_least)) if bound is not None
        ]
        return f"{' and '.join(bounds)} {self.unit}".strip() if bounds else ""


def measured(
    row: int, what: str, value: float, *, unit: str = "s", at_most: float | None = None, at_least: float | None = None
) -> None:
    """Write a measurement down, and hold it to its budget. AssertionError where it is missed."""
    measurement = Measurement(row, what, round(value, 4), unit, at_most, at_least)
    FILE.parent.mkdir(exist_ok=True)
    with FILE.open("a", encoding="utf-8") as lines:  # one write, so that lines of several processes stay whole
        lines.write(json.dumps(asdict(measurement), ensure_ascii=False) + "\n")
    assert measurement.kept, f"row {row}, {what}: {value:.2f} {unit}, budget {measurement.budget}"


@contextmanager
def timed(row: int, what: str, *, at_most: float | None = None) -> Iterator[None]:
    """Measure how long the block takes."""
    began = time.monotonic()
    yield
    measured(row, what, time.monotonic() - began, at_most=at_most)


def read(file: Path = FILE) -> list[Measurement]:
    """All that was measured, in order; none where there was no run."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [Measurement(**json.loads(line)) for line in lines]


def in_words(measurements: Sequence[Measurement]) -> str:
    """Those of a row: each thing once, as a range where it was measured several times."""
    by_name: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in measurements:
        by_name[one.what, one.unit].append(one.value)
    return "; ".join(f"{what}: {_range(values)} {unit}".strip() for (what, unit), values in by_name.items())


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
