"""``python -m e2e.console.pictures``: each dashboard as a picture, of a fleet of fake engines that runs for a while.

The queries are the dashboards' own, answered by a real Prometheus; where everything stands, what it is called and how
numbers are written is theirs as well. Grafana draws it more finely. Pictures go to docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from PIL import Image

from e2e.console.prometheus import Series
from e2e.console.shown_panels import Shown, shown_panels
from tests.chart.dashboards import Board, Panel, Query, boards

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
SECONDS: Final = 90.0
COLUMNS: Final = 24
WIDTH: Final = 13.0
UNIT: Final = 0.2
"""Inches: of a picture's width, and of one row of a dashboard's grid."""
DPI: Final = 80
COLOURS: Final = 96
MOST_LINES: Final = 12
MOST_NAMES: Final = 6
_LABEL: Final = re.compile(r"\{\{(\w+)\}\}")
_INK, _FAINT, _PAPER = "#1f2430", "#8a8f98", "#f4f5f5"
_STEPS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))
_ENDINGS: Final = {"reqps": "requests/s", "ops": "/s", "bytes": "B", "Bps": "B/s", "suffix: tokens/s": "tokens/s"}
_TIMES: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    chosen = parser.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # the engine that is killed says so
    print(f"a fleet of fake engines runs for {chosen.seconds:.0f} s ...", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = asyncio.run(
            shown_panels(
                Path(folder),
                enough=lambda seen: seen.end - seen.begin >= chosen.seconds,
                restart_after=chosen.seconds / 2,
            )
        )
    for board in boards():
        print(write_picture(board, shown, chosen.folder))


def write_picture(board: Board, shown: Shown, folder: Path) -> Path:
    """The picture of one dashboard; where it was written."""
    mpl.rcParams["font.size"] = 8
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board.raw["panels"])
    figure = Figure(figsize=(WIDTH, (rows + 3) * UNIT), facecolor=_PAPER)
    figure.text(0.012, 1 - 1.5 / (rows + 3), board.title, fontsize=13, weight="bold", color=_INK, va="center")
    place = _places(rows)
    for raw in board.raw["panels"]:
        if raw["type"] == "row":
            left, bottom, _, height = place(raw["gridPos"])
            figure.text(left, bottom + height / 2, raw["title"], fontsize=10, weight="bold", color=_INK, va="center")
    for panel in board.panels:
        _draw(figure, panel, shown, place(panel.raw["gridPos"]))
    return _written(figure, folder / f"dashboards-{board.name}.png")


def _places(rows: int) -> Callable[[Mapping[str, int]], tuple[float, float, float, float]]:
    """Left, bottom, width and height of a place in the grid, as shares of the picture."""
    high = rows + 3

    def place(at: Mapping[str, int]) -> tuple[float, float, float, float]:
        bottom = 1 - (3 + at["y"] + at["h"]) / high
        return 0.01 + 0.98 * at["x"] / COLUMNS, bottom, 0.98 * at["w"] / COLUMNS, at["h"] / high

    return place


def _draw(figure: Figure, panel: Panel, shown: Shown, place: tuple[float, float, float, float]) -> None:
    left, bottom, width, height = place
    figure.add_artist(
        mpl.patches.FancyBboxPatch(
            (left + 0.003, bottom + 0.05 * height),
            width - 0.006,
            height * 0.92,
            boxstyle="round,pad=0,rounding_size=0.002",
            facecolor="white",
            edgecolor="#dcdee2",
            transform=figure.transFigure,
            zorder=-1,
        )
    )
    lines = _lines(panel, shown.answers)
    figure.text(left + 0.008, bottom + 0.92 * height, panel.title, weight="bold", color=_INK, va="top")
    if panel.raw["type"] == "stat":
        middle, told = left + width / 2, _last(panel, lines)
        figure.text(middle, bottom + 0.38 * height, told, fontsize=17, color="#2b7a4b", ha="center", va="center")
        return
    axes = figure.add_axes((left + 0.035, bottom + 0.36 * height, width - 0.047, 0.43 * height))
    axes.set_title(_ENDINGS.get(panel.unit, ""), loc="right", color=_FAINT, fontsize=7)
    _plot(axes, panel, lines, shown)


def _lines(panel: Panel, answers: Mapping[Query, list[Series]]) -> dict[str, Series]:
    """Each line of a panel by its name in the legend."""
    return {legend(query, one): one for query in panel.queries for one in answers[query]}


def legend(query: Query, series: Series) -> str:
    """The name of one line."""
    return _LABEL.sub(lambda match: series.labels.get(match[1], ""), query.legend).strip()


def _last(panel: Panel, lines: Mapping[str, Series]) -> str:
    if panel.raw["options"]["textMode"] == "name":
        return ", ".join(lines)
    return ", ".join(written(one.points[-1][1], panel.unit) for one in lines.values()) or "-"


def _plot(axes: Axes, panel: Panel, lines: Mapping[str, Series], shown: Shown) -> None:
    for name, series in list(lines.items())[:MOST_LINES]:
        points = [(at - shown.begin, value) for at, value in series.points]
        axes.plot(*zip(*points, strict=True), label=name, linewidth=1.1)
    if not lines:
        axes.text(0.5, 0.5, "nothing", color=_FAINT, ha="center", va="center", transform=axes.transAxes)
    limits = panel.raw["fieldConfig"]["defaults"]
    axes.set_ylim(bottom=limits.get("min"), top=limits["max"] * 1.05 if "max" in limits else None)
    axes.set_xlim(0, shown.end - shown.begin)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:.0f} s"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value, panel.unit, ending=False)))
    axes.tick_params(colors=_FAINT, labelsize=7, length=0)
    axes.grid(color="#eceef0", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    if lines:
        _legend(axes)


def _legend(axes: Axes) -> None:
    """Below; of the first lines alone where there are many."""
    lines, names = axes.get_legend_handles_labels()
    shown = min(len(lines), MOST_NAMES)
    axes.legend(
        lines[:shown],
        names[:shown],
        loc="upper center",
        bbox_to_anchor=(0.47, -0.14),
        ncols=3,
        fontsize=6.5,
        columnspacing=1.2,
        handlelength=1.2,
        frameon=False,
    )


def written(value: float, unit: str, *, ending: bool = True) -> str:
    """A number as people read it; without its ending where the panel has that elsewhere."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        return _scaled(value, _TIMES, " ")
    number = _scaled(value, _STEPS, "")
    return f"{number} {_ENDINGS[unit]}" if ending and unit in _ENDINGS else number


def _scaled(value: float, steps: tuple[tuple[float, str], ...], between: str) -> str:
    size, name = next((step for step in steps if abs(value) >= step[0]), steps[-1])
    return f"{value / size:.3g}{between}{name}" if value else "0"


def _written(figure: Figure, file: Path) -> Path:
    """Few colours: it is read in a page, and kept in the repository."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI, facecolor=figure.get_facecolor())
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(drawn).convert("RGB").quantize(COLOURS).save(file, optimize=True)
    return file


if __name__ == "__main__":
    main()
