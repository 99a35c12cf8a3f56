"""All dashboards are made alike: the rules of Grafana's dashboard-linter, and a few of our own."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

import pytest

from charts.dashboards.__main__ import stale
from charts.dashboards.dashboard import COLUMNS
from tests.chart.dashboards import FILES, RATE_INTERVAL, Board, boards

A_SECOND = {"reqps", "ops", "Bps", "suffix: tokens/s"}
UNITS = {"short", "percentunit", "s", "bytes"} | A_SECOND
COUNTER = re.compile(r"_(total|bucket|sum|count)$")
RANGE = re.compile(r"\[([^]]*)\]")
RECORDED = "pool:"
OF_POOLS = (RECORDED, "cachefleet_pool_", "cachefleet_worker_")

PANELS = [panel for board in boards() for panel in board.panels]
QUERIES = [query for panel in PANELS for query in panel.queries]
SELECTORS = [(query, selector) for query in QUERIES for selector in query.selectors]

every_board = pytest.mark.parametrize("board", boards(), ids=lambda board: board.name)


def test_there_are_dashboards() -> None:
    assert {board.name for board in boards()} == {"fleet", "operator", "workers"}
    assert len({board.raw["uid"] for board in boards()}) == len(FILES)
    assert all(board.title.startswith("Cachefleet / ") for board in boards())


def test_the_files_are_what_their_descriptions_say() -> None:
    assert stale() == [], "python -m charts.dashboards"


@every_board
def test_panels_lie_side_by_side_and_none_upon_another(board: Board) -> None:
    taken = Counter(cell for raw in board.raw["panels"] for cell in _cells(**raw["gridPos"]))

    assert max(taken.values()) == 1
    assert max(column for column, _ in taken) < COLUMNS


@every_board
def test_a_dashboard_begins_with_its_data_source_and_its_jobs(board: Board) -> None:
    source, job, *_ = board.variables

    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    assert (job["name"], job["label"]) == ("job", "Job")
    assert "pool" in {variable["name"] for variable in board.variables}


@every_board
def test_variables_let_one_choose_several_or_all_and_are_refreshed_with_the_time(board: Board) -> None:
    for variable in board.variables[1:]:
        assert variable["label"], variable["name"]
        assert (variable["multi"], variable["includeAll"], variable["refresh"]) == (True, True, 2), variable["name"]
        assert variable["allValue"] in {".+", ".*"}, variable["name"]
        assert variable["datasource"]["uid"] == "${datasource}"


@every_board
def test_every_variable_is_used(board: Board) -> None:
    told = json.dumps([board.raw["panels"], board.variables])

    assert [one["name"] for one in board.variables if not re.search(rf"\${{?{one['name']}\b", told)] == []


@every_board
def test_panels_are_below_a_row_and_each_of_its_own_name(board: Board) -> None:
    assert board.raw["panels"][0]["type"] == "row"
    assert all(one["type"] != "row" or two["type"] != "row" for one, two in pairwise(board.raw["panels"]))
    assert [name for name, count in Counter(panel.name for panel in board.panels).items() if count > 1] == []


def test_a_panel_says_what_it_shows() -> None:
    assert [panel.name for panel in PANELS if not (panel.title and panel.raw["description"].endswith("."))] == []
    assert [panel.name for panel in PANELS if panel.unit not in UNITS] == []
    assert [panel.name for panel in PANELS if panel.raw["type"] not in {"stat", "timeseries"}] == []
    assert [panel.name for panel in PANELS if not panel.queries] == []


def test_a_share_is_shown_up_to_the_whole() -> None:
    shares = [panel for panel in PANELS if panel.unit == "percentunit"]

    assert [panel.name for panel in shares if panel.raw["fieldConfig"]["defaults"].get("max") != 1] == []


def test_panels_and_queries_are_of_the_chosen_data_source() -> None:
    asked = [one for panel in PANELS for one in (panel.raw, *panel.raw["targets"])]

    assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}


def test_a_rate_is_told_from_a_number_by_its_unit() -> None:
    numbers = [panel for panel in PANELS if panel.unit not in {"s", "percentunit"}]

    assert [
        query.panel
        for panel in numbers
        for query in panel.queries
        if ("rate(" in query.text) is not (panel.unit in A_SECOND)
    ] == []


def test_each_line_of_a_panel_has_its_name() -> None:
    for panel in PANELS:
        legends = [query.legend for query in panel.queries]
        assert len(legends) == len(set(legends)), panel.name
        assert all(legends), panel.name
        assert panel.raw["type"] == "stat" or "__auto" not in legends, panel.name


def test_a_query_is_promql_that_asks_for_our_series() -> None:
    """What is no PromQL is a ValueError here."""
    assert [query for query in QUERIES if not query.selectors] == []
    assert {selector.name.split("_")[0] for _, selector in SELECTORS} == {"cachefleet", "pool:cachefleet"}


def test_a_counter_is_shown_as_its_rate_over_the_time_that_grafana_gives() -> None:
    assert [
        (query.panel, selector.name)
        for query, selector in SELECTORS
        if bool(COUNTER.search(selector.name)) is not selector.rated
    ] == []
    assert {time for query in QUERIES for time in RANGE.findall(query.text)} == {RATE_INTERVAL}


def test_a_query_is_of_the_chosen_jobs_and_pools() -> None:
    for query, selector in SELECTORS:
        asked, name = selector.labels, selector.name
        if not name.startswith(RECORDED):
            assert asked["job"] == ("$agents" if name.startswith("cachefleet_agent_") else "$job"), query
        if name.startswith(OF_POOLS) and not name.startswith("cachefleet_pool_source_"):
            assert asked["pool"] == "$pool", query


def test_labels_in_a_legend_are_there() -> None:
    for query in QUERIES:
        grouped = re.findall(r"\bby \(([^)]*)\)", query.text)
        kept = {label.strip() for group in grouped for label in group.split(",")}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= (kept or {"pod", "pool"}), query


def test_quantiles_keep_the_buckets() -> None:
    assert [query for query in QUERIES if "quantile" in query.text and "by (le" not in query.text] == []


def _cells(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    """The places of Grafana's grid that a panel takes: columns and lines."""
    return [(column, line) for column in range(x, x + w) for line in range(y, y + h)]
