"""Every alert leads to a section of the docs that says what to do, and the docs' table says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.chart.rules import alerts

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ROW = re.compile(r"^\| `(Cachefleet\w+)` \|.*\(([\w.]*)#([\w-]+)\)[^|]*\|$", re.MULTILINE)


def anchors(page: str) -> set[str]:
    """Of all headings of a page below docs/, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_has_its_runbook(alert: str) -> None:
    page, _, anchor = alerts()[alert]["annotations"]["runbook_url"].partition("#")

    assert page in {"docs/troubleshooting.md", "docs/operations.md"}
    assert anchor in anchors(page)


def test_the_docs_list_every_alert_with_the_same_runbook() -> None:
    table = (ROOT / "docs" / "troubleshooting.md").read_text()
    listed = {alert: f"docs/{page or 'troubleshooting.md'}#{anchor}" for alert, page, anchor in ROW.findall(table)}

    assert listed == {alert: rule["annotations"]["runbook_url"] for alert, rule in alerts().items()}
