"""Every panel of every dashboard shows something of a fleet that runs, or is listed as empty by right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from e2e.console.pictures import FOLDER, write_picture
from e2e.console.shown_panels import Shown, shown_panels
from tests.chart.dashboards import Query, boards

pytestmark = [pytest.mark.console, pytest.mark.timeout(420)]

PATIENCE = 120.0
"""Seconds until what is not shown is missing; what is shown ends it, as a rule after some twenty."""
MOST_BYTES = 200_000
"""Of a picture: it is kept in the repository."""

EMPTY = {
    ("fleet: Decisions: Prefill on other workers", "{{outcome}}"): "no worker of this fleet has the role Prefill",
    ("fleet: Hit curves: Error of curve and advice", "{{pool}} change"): "the pool keeps its size",
    ("fleet: Contracts: Time that contracts were met", "{{pool}} {{tenant}}"): "no tenant has a contract",
    ("fleet: Contracts: Why contracts were not met", "{{pool}} {{tenant}} {{reason}}"): "no tenant has a contract",
    ("fleet: Control plane: Reports not taken", "malformed: {{reason}}"): "no agent sends malformed frames",
    ("fleet: Control plane: Store, in trouble", "errors {{kind}}"): "the store does not fail",
    ("fleet: Control plane: Unexpected errors", "pools: {{kind}}"): "the file of pools does not fail",
}
"""Queries by panel and legend that have nothing to show, and why."""
BY_CHANCE = {
    ("fleet: Decisions: How far predictions are off", "beyond"): "nothing may come into a cache beside a decision",
    ("fleet: Control plane: Reports", "resync {{reason}}"): "a busy machine may lose events, and has them healed",
    ("fleet: Control plane: Reports not taken", "{{reason}}"): "an agent may come before the control plane takes it",
}
"""Those of which it cannot be said."""


def name(query: Query) -> tuple[str, str]:
    return query.panel, query.legend


def missing(shown: Shown) -> list[Query]:
    """Queries that should have an answer and have none."""
    return [query for query, found in shown.answers.items() if not found and name(query) not in EMPTY | BY_CHANCE]


def down(shown: Shown) -> dict[str, str]:
    """Parts that were not read the last time, of which each has a second to answer."""
    return {name: health for name, health in shown.targets.items() if health != "up"}


def uncomputed(shown: Shown) -> dict[str, str]:
    """Rules that were not computed, and why."""
    return {rule["name"]: str(rule.get("lastError")) for rule in shown.rules if rule["health"] != "ok"}


def enough(seen: Shown) -> bool:
    whole = not (missing(seen) or down(seen) or uncomputed(seen))
    return whole or seen.end - seen.begin > PATIENCE


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return asyncio.run(shown_panels(tmp_path_factory.mktemp("fleet"), enough=enough))


def test_every_query_of_every_panel_returns_samples(shown: Shown) -> None:
    assert [(query.panel, query.legend, query.text) for query in missing(shown)] == []


def test_what_is_listed_as_empty_is_there_and_is_empty(shown: Shown) -> None:
    known = {name(query) for board in boards() for panel in board.panels for query in panel.queries}
    wrongly = {name(query) for query, found in shown.answers.items() if found} & EMPTY.keys()

    assert (EMPTY | BY_CHANCE).keys() <= known
    assert wrongly == set()


def test_every_part_is_read_and_every_rule_computed(shown: Shown) -> None:
    assert shown.targets
    assert shown.rules
    assert down(shown) == {}
    assert uncomputed(shown) == {}


def test_a_dashboard_is_drawn_in_a_small_picture(shown: Shown, tmp_path: Path) -> None:
    for board in boards():
        drawn = write_picture(board, shown, tmp_path)
        assert 10_000 < drawn.stat().st_size < MOST_BYTES
        assert (FOLDER / drawn.name).exists(), "make dashboards"


def test_shares_are_shares(shown: Shown) -> None:
    """What would not show in an empty panel: numbers that cannot be."""
    panels = [panel for board in boards() for panel in board.panels if panel.unit == "percentunit"]
    shares = {query for panel in panels for query in panel.queries}
    told = {(*name(query), value) for query in shares for one in shown.answers[query] for _, value in one.points}

    assert {one for one in told if not -0.001 <= one[2] <= 1.001} == set()
