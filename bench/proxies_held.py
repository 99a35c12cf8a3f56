"""What exactness costs: requests that a worker holds while it is asked for their keys, beside the approximate rung.

Two control planes before one fake engine with the plugin, each on the gateway's core, in turns: one decides by keys
that the worker renders (held requests), with its agent's reports; the other by the prompt's text. Then the same with
many workers to choose from, all of them that engine; the first alone has an agent.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp

from bench.bars import Bar
from bench.gateway import cpu_seconds
from bench.parts import POOL, Engine, Running, control_plane, cores, fake_engine, fleet, plane
from bench.proxies_client import Caller, ProxyError, Shape, load
from bench.rows import Row, median, row
from cachefleet_core.tenancy import FleetKey, fleet_index_key
from cachefleet_local.models.tiny_model import tiny_model_path

CONNECTIONS: Final = 8
WINDOW_SECONDS: Final = 2.0
BODIES: Final = 2000
READY_SECONDS: Final = 60.0
SMALL: Final = 2 * 1024
FEW, MANY = 8, 64
SHAPES: Final = (
    Shape(SMALL, stream=False),
    Shape(SMALL, stream=True, tokens=FEW),
    Shape(SMALL, stream=True, tokens=MANY),
)
FLEETS: Final = (100, 1000)
"""Workers to choose from, besides one alone."""
OF_FLEETS: Final = SHAPES[:2]
WHOLE_BAR: Final = Bar("proxies", "", "ratio", 1.3)
EVENT_BAR: Final = Bar("proxies", "", "ratio", 1.1)
_HELD, _APPROXIMATE = "held", "approximate"
Spent = dict[str, list[float]]
"""Microseconds of CPU of a request, window by window."""


def held_rows(folder: Path, *, rounds: int) -> list[Row]:
    """CPU of a request and of an event, of held requests beside the approximate rung. ProxyError for a wrong answer."""
    key = FleetKey.generate()
    mine, core = cores(2)
    index_key = fleet_index_key(key.index_key, "default", "bench")
    with fake_engine(
        folder,
        key.worker_key(POOL),
        core=mine,
        tokenizer=tiny_model_path(),
        plugin=True,
        index_key=index_key,
        natural_tokens=10 * MANY,
    ) as engine:
        out: list[Row] = []
        for workers in (1, *FLEETS):
            with _planes(folder / f"{_HELD}-{workers}", key, engine, workers=workers, core=core, other=mine) as planes:
                rows = _rows(planes, rounds=rounds) if workers == 1 else _fleet_rows(planes, workers, rounds=rounds)
                out += asyncio.run(_once_held(planes[_HELD], engine, rows))
        return out


@contextmanager
def _planes(
    folder: Path, key: FleetKey, engine: Engine, *, workers: int, core: set[int], other: set[int]
) -> Iterator[dict[str, Running]]:
    """Both control planes before so many workers; the agent is on the ``other`` core."""
    (folder / _APPROXIMATE).mkdir(parents=True)
    engines = fleet(engine, workers)
    with (
        control_plane(folder, key, engine, core=core, agent_core=other, workers=workers) as held,
        plane(folder / _APPROXIMATE, key, engines, core=core, knowledge=_APPROXIMATE) as approximate,
    ):
        yield {_HELD: held, _APPROXIMATE: approximate}


async def _once_held(running: Running, engine: Engine, rows: Awaitable[list[Row]]) -> list[Row]:
    await _until_held(running, engine)
    return await rows


async def _fleet_rows(planes: dict[str, Running], workers: int, *, rounds: int) -> list[Row]:
    spent = {shape: await _measured(planes, shape, rounds=rounds) for shape in OF_FLEETS}
    name = f"CPU of a request before {workers:,} workers, held beside approximate"
    return [_row(f"{shape.name}: {name}", spent[shape]) for shape in OF_FLEETS]


async def _rows(planes: dict[str, Running], *, rounds: int) -> list[Row]:
    spent = {shape: await _measured(planes, shape, rounds=rounds) for shape in SHAPES}
    out = [_row(f"{shape.name}: CPU of a request, held beside approximate", spent[shape]) for shape in SHAPES]
    out[0] |= {"bar": str(WHOLE_BAR), "kept": WHOLE_BAR.holds(out[0]["ratio"])}
    few, many = spent[SHAPES[1]], spent[SHAPES[2]]
    events = {way: [(median(many[way]) - median(few[way])) / (MANY - FEW)] for way in planes}
    event = _row("CPU of an event, held beside approximate", events)
    return [*out, event | {"bar": str(EVENT_BAR), "kept": EVENT_BAR.holds(event["ratio"])}]


def _row(name: str, spent: Spent) -> Row:
    return row(name, median(spent[_HELD]), median(spent[_APPROXIMATE]), unit="us")


async def _measured(planes: dict[str, Running], shape: Shape, *, rounds: int) -> Spent:
    bodies = (body[:-1] + b',"ignore_eos":true}' for body in shape.bodies())  # else answers end by themselves
    await _check(planes, next(bodies))
    spent: Spent = {way: [] for way in planes}
    for number in range(rounds):
        for way in (list(planes), list(planes)[::-1])[number % 2]:
            spent[way].append(await _window(planes[way], list(itertools.islice(bodies, BODIES))))
    return spent


async def _check(planes: dict[str, Running], body: bytes) -> None:
    """A wrong answer voids the measurement."""
    heard = {}
    for way, running in planes.items():
        caller = await Caller.to(running.gateway)
        heard[way] = (await caller.ask(body)).text
        caller.close()
    if heard[_HELD] != heard[_APPROXIMATE]:
        raise ProxyError(f"held requests are answered otherwise:\n{heard}")


async def _window(running: Running, bodies: Sequence[bytes]) -> float:
    before = cpu_seconds(running.pid)
    answered, _ = await load(running.gateway, bodies, connections=CONNECTIONS, seconds=WINDOW_SECONDS)
    return 1e6 * (cpu_seconds(running.pid) - before) / len(answered)


async def _until_held(running: Running, engine: Engine) -> None:
    """Wait until prompts' keys come from the worker's plugin, by when its agent has told that it holds requests."""
    body = next(SHAPES[0].bodies())
    end = time.monotonic() + READY_SECONDS
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < end:
            headers = {"content-type": "application/json"}
            async with http.post(f"{running.gateway}/v1/chat/completions", data=body, headers=headers) as answer:
                await answer.read()
            async with http.get(f"{running.internal}/metrics") as scraped:
                if b'cachefleet_render_seconds_count{rung="keys"}' in await scraped.read():
                    return
            await asyncio.sleep(0.2)
    raise ProxyError(f"no keys come from {engine.url}")
