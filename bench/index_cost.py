"""What only ours can be asked: queries beside a writer at full speed, and churn."""

from __future__ import annotations

from collections.abc import Iterator

from bench.index_beside import beside_rows
from bench.index_memory import churn
from bench.rows import Row


def own_rows() -> Iterator[Row]:
    yield from beside_rows()
    yield alone("resident memory after 100M of 1M blocks went and came back, against before", churn(), "x")


def alone(name: str, value: float, unit: str) -> Row:
    return {"row": name, "ours": value, "peer": None, "ratio": None, "unit": unit}
