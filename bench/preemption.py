"""A preemption storm with marked requests handed back, against stock vLLM that computes every victim again.

    python -m bench.preemption

Two real servers with 63 usable blocks each stand side by side; the same six prompts of 200 tokens ask both in turn for
700 tokens each, and two of them fit at their end. Survivors are the requests that were answered whole; the bar holds
the speed of each against the same request on stock vLLM, which answers all six whole, victims computed again. Handed
back tokens have reached their client and count among those delivered.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import rows
from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.gate_scenario import threshold
from e2e.engine.side import Side
from e2e.engine.storm import MARK, Storm, prompts
from e2e.engine.storm import storm as run_storm
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

ROUNDS: Final = 15
REJECT_BELOW: Final = 0.5
STOCK: Final = VllmOptions(forked=False)
PLUGIN: Final = VllmOptions(plugin=True, forked=False)


def storm(*, rounds: int = ROUNDS) -> list[rows.Row]:
    """The rows of this part. RuntimeError where a victim came back that should not, or was lost."""
    model = tiny_model_path()
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name) / side for side in ("plugin", "stock")]
        for folder in folders:
            folder.mkdir()
        with (
            running_vllm(PLUGIN, model, folders[0] / "vllm.log") as ours,
            running_vllm(STOCK, model, folders[1] / "vllm.log") as peer,
            threshold(ours, 0.0, preemption="HandBack", reject_below=REJECT_BELOW),
        ):
            return result(asyncio.run(_rounds(ours, peer, rounds)))


async def _rounds(ours: VllmServer, peer: VllmServer, rounds: int) -> list[tuple[Storm, Storm]]:
    measured = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        sides = [Side(server.url, "", "", server.headers, session) for server in (ours, peer)]
        for number in range(rounds + 1):
            pair = await _round(sides, number)
            if number:  # the first one warms
                measured.append(pair)
    return measured


async def _round(sides: list[Side], number: int) -> tuple[Storm, Storm]:
    given = prompts(1000 + number)
    found: dict[int, Storm] = {}
    for which in (0, 1) if number % 2 else (1, 0):
        more: dict[str, Any] = MARK if which == 0 else {}
        found[which] = await run_storm(sides[which], given, **more)
    _check(found[0], found[1])
    return found[0], found[1]


def _check(ours: Storm, peer: Storm) -> None:
    if len(peer.survivors) != len(peer.answers):
        raise RuntimeError("stock vLLM did not answer all")
    if len(ours.survivors) + len(ours.handed_back) != len(ours.answers) or not ours.handed_back:
        raise RuntimeError("a victim was lost, or none was handed back")
    for answer in ours.handed_back:
        needed = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
        if answer["details"]["hit_tokens"] / needed >= REJECT_BELOW:
            raise RuntimeError(f"handed back with enough left: {answer['details']}")


def result(measured: list[tuple[Storm, Storm]]) -> list[rows.Row]:
    """Medians over the rounds; the bar is that survivors are answered at least as fast as by stock vLLM."""
    speeds = [pair for mine, its in measured for pair in _speeds(mine, its)]
    speed = _row("speed of a survivor", [mine for mine, _ in speeds], [its for _, its in speeds])
    delivered = _row("delivered", *_columns(measured, lambda side: side.throughput))
    whole = _row("delivered in whole answers", *_columns(measured, lambda side: side.survivors_throughput))
    taken = _columns(measured, lambda side: side.seconds)
    back = [len(mine.handed_back) for mine, _ in measured]
    return [
        speed,
        delivered,
        whole,
        rows.row("preemption storm, until all are answered", rows.median(taken[0]), rows.median(taken[1]), unit="s"),
        rows.row("preemption storm, handed back of six", rows.median(back), unit="requests"),
    ]


def _speeds(ours: Storm, peer: Storm) -> list[tuple[float, float]]:
    """Of each survivor: tokens a second, with the plugin and without."""
    survived = [number for number, answer in enumerate(ours.answers) if answer in ours.survivors]
    return [(ours.speed(number), peer.speed(number)) for number in survived]


def _columns(measured: list[tuple[Storm, Storm]], of: Callable[[Storm], float]) -> list[list[float]]:
    return [[of(side) for side in sides] for sides in zip(*measured, strict=True)]


def _row(name: str, ours: list[float], peer: list[float]) -> rows.Row:
    return rows.row(f"preemption storm, {name}", rows.median(ours), rows.median(peer), unit="tok/s")


if __name__ == "__main__":
    for row in storm():
        print(row)
