"""Every panel's queries, answered by a Prometheus that has watched a fake fleet for some seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from cachefleet_operator.metrics import Metrics
from e2e.console.fake_fleet import fake_fleet
from e2e.console.fleet_traffic import Traffic
from e2e.console.operator_metrics import operate, served
from e2e.console.prometheus import Prometheus, Series, prometheus
from tests.chart.dashboards import Board, Query, boards

RATE_INTERVAL: Final = "4s"
"""As Grafana has it where metrics are read each second."""

Answers = Mapping[Query, list[Series]]


@dataclass(frozen=True)
class Shown:
    """What Prometheus has seen, from ``begin`` to ``end`` in Unix seconds."""

    answers: Answers
    targets: Mapping[str, str]
    rules: list[dict[str, Any]]
    begin: float
    end: float


async def shown_panels(folder: Path, *, enough: Callable[[Shown], bool], restart_after: float = 3.0) -> Shown:
    """Start a fleet, an operator's metrics and a Prometheus; let requests run until ``enough`` is shown."""
    operator = Metrics("0.1.0")
    with served(operator) as target:
        async with fake_fleet(folder) as fleet, aiohttp.ClientSession() as http:
            with prometheus(folder, [*fleet.targets, target]) as watching:
                traffic = Traffic(fleet, http, restart_after)
                await asyncio.gather(fleet.ready(http), traffic.prepare())
                running = [asyncio.create_task(traffic.run()), asyncio.create_task(operate(operator))]
                return await _until_enough(watching, running, enough)


async def _until_enough(
    watching: Prometheus, running: Sequence[asyncio.Task[None]], enough: Callable[[Shown], bool]
) -> Shown:
    begin = time.time()
    while True:
        ended, _ = await asyncio.wait(running, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        shown = await asyncio.to_thread(_shown, watching, begin)
        if not ended and not enough(shown):
            continue
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        for task in ended:
            task.result()
        return shown


def _shown(watching: Prometheus, begin: float) -> Shown:
    end = time.time()
    answers = {query: series for board in boards() for query, series in ask(watching, board, begin, end).items()}
    return Shown(answers, watching.targets(), watching.rules(), begin, end)


def ask(watching: Prometheus, board: Board, begin: float, end: float) -> dict[Query, list[Series]]:
    """The answers to all queries of a dashboard on which everything is chosen."""
    queries = [query for panel in board.panels for query in panel.queries]
    filled = {query: query.filled(board.everything, rate_interval=RATE_INTERVAL) for query in queries}
    return {query: watching.series(text, begin=begin, end=end) for query, text in filled.items()}
