"""Rows of a benchmark's table: ours beside the peer's, a unit, and the bar that ours is to keep."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

Row = dict[str, Any]
"""``row``, ``ours``, ``peer`` (None where there is none), ``ratio``, ``unit``; with a bar ``bar`` and ``kept``."""

RESAMPLES: Final = 10_000


def row(name: str, ours: float, peer: float | None = None, *, unit: str = "ms") -> Row:
    return {"row": name, "ours": ours, "peer": peer, "ratio": ours / peer if peer else None, "unit": unit}


def row_text(one: Row) -> str:
    """One line for people: name, figures, unit, and whether it keeps its bar."""
    figures = "".join("" if one[name] is None else f"{one[name]:>12.4g}" for name in ("ours", "peer", "ratio"))
    verdict = f"   {one['bar']} {'kept' if one['kept'] else 'MISSED'}" if "bar" in one else ""
    return f"{one['row']:<66}{figures} {one['unit']:<6}{verdict}"


def reported(rows: Iterable[Row], results: Path) -> list[Row]:
    """Print rows as they come, and write them to a file; return them."""
    found = []
    for one in rows:
        print(row_text(one), flush=True)
        found.append(one)
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {os.path.relpath(results)}")
    return found


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def percentile(values: Sequence[float], share: int) -> float:
    """``share`` from 1 to 99."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean; two values at least."""
    count = len(values)
    half = _student(confidence, count - 1) * statistics.stdev(values) / math.sqrt(count)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def ratio_interval(ours: Sequence[float], peer: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the ratio of two medians."""
    chance = random.Random(seed)
    drawn = sorted(
        statistics.median(chance.choices(ours, k=len(ours))) / statistics.median(chance.choices(peer, k=len(peer)))
        for _ in range(RESAMPLES)
    )
    return drawn[int(RESAMPLES * 0.025)], drawn[int(RESAMPLES * 0.975) - 1]


def _student(confidence: float, degrees: int) -> float:
    """Quantile of Student's t by Fisher's expansion around the normal one; within 0.001 from 10 degrees on."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )
