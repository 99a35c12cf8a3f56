"""The chart's Grafana dashboards: their panels, and their queries as Grafana sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from promql_parser import Expr, MatrixSelector, VectorSelector, parse, walk

from tests.chart.helm import CHART, Object

FILES: Final[Sequence[Path]] = sorted((CHART / "dashboards").glob("*.json"))
RATE_INTERVAL: Final = "$__rate_interval"
_VARIABLE: Final = re.compile(r"\$(\w+)")


@dataclass(frozen=True)
class Selector:
    """One series selector of an expression; ``rated``: it has a range, as rate and increase ask for."""

    name: str
    labels: Mapping[str, str]
    """What each label has to match."""
    rated: bool


@dataclass(frozen=True)
class Query:
    """One query of a panel."""

    panel: str
    text: str
    legend: str

    def filled(self, variables: Mapping[str, str], *, rate_interval: str) -> str:
        """The expression that Grafana sends."""
        with_rates = self.text.replace(RATE_INTERVAL, rate_interval)
        return _VARIABLE.sub(lambda match: variables[match[1]], with_rates)

    @cached_property
    def selectors(self) -> list[Selector]:
        """All of them, by PromQL's own grammar."""
        return selectors(self.text.replace(RATE_INTERVAL, "4m"))


@dataclass(frozen=True)
class Panel:
    """One panel that shows series."""

    board: str
    row: str
    raw: Object

    @property
    def title(self) -> str:
        return str(self.raw["title"])

    @property
    def name(self) -> str:
        """How messages and lists name it."""
        return f"{self.board}: {self.row}: {self.title}"

    @property
    def unit(self) -> str:
        return str(self.raw["fieldConfig"]["defaults"].get("unit", ""))

    @cached_property
    def queries(self) -> list[Query]:
        return [Query(self.name, target["expr"], target["legendFormat"]) for target in self.raw["targets"]]


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    name: str
    raw: Object

    @property
    def title(self) -> str:
        return str(self.raw["title"])

    @cached_property
    def panels(self) -> list[Panel]:
        """In their order, rows left out."""
        return list(self._panels())

    @property
    def variables(self) -> list[Object]:
        found: list[Object] = self.raw["templating"]["list"]
        return found

    @property
    def everything(self) -> dict[str, str]:
        """The values of all variables where "All" is chosen."""
        return {found["name"]: found["allValue"] for found in self.variables if found["type"] == "query"}

    def _panels(self) -> Iterator[Panel]:
        row = ""
        for raw in self.raw["panels"]:
            if raw["type"] == "row":
                row = raw["title"]
            else:
                yield Panel(self.name, row, raw)


@cache
def boards() -> list[Board]:
    """All dashboards of the chart."""
    return [Board(file.stem, json.loads(file.read_text())) for file in FILES]


def selectors(text: str) -> list[Selector]:
    """The series selectors of an expression; ValueError where it is no PromQL."""
    nodes: list[Expr] = []
    walk(parse(text), nodes.append)
    return list(_selectors(nodes))


def _selectors(nodes: Sequence[Expr]) -> Iterator[Selector]:
    """A range comes right before the selector that it is of."""
    for before, node in zip([None, *nodes], nodes, strict=False):
        if isinstance(node, MatrixSelector):
            yield _selector(node.vector_selector, rated=True)
        elif isinstance(node, VectorSelector) and not isinstance(before, MatrixSelector):
            yield _selector(node, rated=False)


def _selector(node: VectorSelector, *, rated: bool) -> Selector:
    labels = {matcher.name: matcher.value for matcher in node.matchers.matchers}
    return Selector(str(node.name), labels, rated)
