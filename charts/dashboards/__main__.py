"""Writes the dashboards' JSON into the chart; with ``--check`` it only says what differs, and ends with 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from charts.dashboards.dashboard import Dashboard
from charts.dashboards.fleet import FLEET
from charts.dashboards.operator import OPERATOR
from charts.dashboards.workers import WORKERS

DASHBOARDS: Final[Sequence[Dashboard]] = (FLEET, OPERATOR, WORKERS)
FOLDER: Final = Path(__file__).parents[1] / "cachefleet" / "dashboards"


def stale() -> list[Path]:
    """Files that are not what the descriptions say."""
    return [path for path, text in _files() if not path.exists() or path.read_text() != text]


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        outdated = stale()
        for path in outdated:
            sys.stderr.write(
                f"{path.name} is not what charts/dashboards/ describes; run: python -m charts.dashboards\n"
            )
        return 1 if outdated else 0
    for path, text in _files():
        path.write_text(text)
    return 0


def _files() -> list[tuple[Path, str]]:
    return [(FOLDER / f"{board.name}.json", board.text()) for board in DASHBOARDS]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
