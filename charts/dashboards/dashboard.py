"""Dashboards, variables, rows and panels, and the JSON that Grafana reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final, TypeAlias

from charts.dashboards.promql import rate, summed

Json: TypeAlias = dict[str, Any]

SOURCE: Final[Mapping[str, str]] = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24
"""Of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression, and the name of each of its lines: Grafana's template over labels."""

    expression: str
    legend: str = "__auto"


@dataclass(frozen=True, slots=True)
class Panel:
    """A title, one sentence of what is shown, Grafana's name of the unit, and the queries."""

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    lowest: int = 0
    highest: int | None = None
    """The end of the axis; of a share always 1."""
    width: int = 8
    height: int = 8
    type: str = "timeseries"
    text_mode: str = "auto"
    """What a figure shows: its value, or its ``name``."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels below one heading, from left to right, as many side by side as fit."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a dashboard: the values of one label of one metric's series."""

    name: str
    label: str
    query: str
    all_values: str = ".+"
    """What "All" matches; ``.*`` also takes series without the label."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; ``name`` is its file's and part of its address."""

    name: str
    title: str
    variables: Sequence[Variable]
    rows: Sequence[Row]

    def text(self) -> str:
        """The file's text."""
        return json.dumps(_dashboard(self), indent=1) + "\n"


def rates_by(label: str, counter: str, *matchers: str, prefix: str = "") -> Query:
    """What a counter grows by in a second, a line for each value of one label, by that value's name."""
    return Query(summed(rate(counter, *matchers), by=label), f"{prefix}{{{{{label}}}}}")


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    lowest: int = 0,
    highest: int | None = None,
    width: int = 8,
) -> Panel:
    """Lines over time."""
    return Panel(title, description, unit, queries, lowest=lowest, highest=highest, width=width)


def figure(
    title: str, description: str, unit: str, query: Query, *, highest: int | None = None, text_mode: str = "auto"
) -> Panel:
    """The latest value alone, large."""
    size = {"width": 4, "height": 4}
    return Panel(title, description, unit, (query,), highest=highest, type="stat", text_mode=text_mode, **size)


def _dashboard(board: Dashboard) -> Json:
    return {
        "uid": f"cachefleet-{board.name}",
        "title": f"Cachefleet / {board.title}",
        "tags": ["cachefleet"],
        "schemaVersion": 39,
        "version": 2,
        "editable": True,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "graphTooltip": 1,
        "links": [_LINK],
        "templating": {"list": [_SOURCE_VARIABLE, *map(_variable, board.variables)]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(_rows(board.rows), 1)],
    }


_LINK: Final[Json] = {
    "type": "dashboards",
    "tags": ["cachefleet"],
    "title": "Cachefleet",
    "asDropdown": True,
    "includeVars": True,
    "keepTime": True,
}
_SOURCE_VARIABLE: Final[Json] = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
}


def _variable(variable: Variable) -> Json:
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": variable.query, "refId": variable.name},
        "definition": variable.query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": variable.all_values,
        "current": {"text": "All", "value": "$__all"},
        "sort": 1,
    }


def _rows(rows: Iterable[Row]) -> Iterator[Json]:
    """Headings and panels in their places, from above."""
    y = 0
    for row in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        yield {"gridPos": place, "title": row.title, "type": "row", "collapsed": False, "panels": []}
        y += 1
        for line in _lines(row.panels):
            yield from (_panel(panel, x, y) for x, panel in line)
            y += max(panel.height for _, panel in line)


def _lines(panels: Sequence[Panel]) -> Iterator[list[tuple[int, Panel]]]:
    """Panels with their columns, as many side by side as fit."""
    line: list[tuple[int, Panel]] = []
    x = 0
    for panel in panels:
        if x + panel.width > COLUMNS:
            yield line
            line, x = [], 0
        line.append((x, panel))
        x += panel.width
    yield line


def _panel(panel: Panel, x: int, y: int) -> Json:
    return {
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "title": panel.title,
        "type": panel.type,
        "description": panel.description,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": _axis(panel), "overrides": []},
        "targets": [_target(*numbered) for numbered in zip(ascii_uppercase, panel.queries, strict=False)],
        "options": _stat_options(panel) if panel.type == "stat" else _GRAPH_OPTIONS,
    }


def _axis(panel: Panel) -> Json:
    highest = 1 if panel.unit == "percentunit" else panel.highest
    return {"unit": panel.unit, "min": panel.lowest} | ({} if highest is None else {"max": highest})


def _target(letter: str, query: Query) -> Json:
    return {"refId": letter, "datasource": SOURCE, "expr": query.expression, "legendFormat": query.legend}


_GRAPH_OPTIONS: Final[Json] = {
    "legend": {"displayMode": "list", "placement": "bottom"},
    "tooltip": {"mode": "multi", "sort": "desc"},
}


def _stat_options(panel: Panel) -> Json:
    return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "textMode": panel.text_mode}
