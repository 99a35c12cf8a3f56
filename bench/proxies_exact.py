"""What the gateway adds where it has a prompt rendered, before one fake engine with its agent: with and without that.

The engine has a real tokenizer (six bytes a token, about), and every prompt is new at its end, so each is rendered.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp

from bench.bars import Bar
from bench.parts import POOL, Engine, Running, control_plane, cores, fake_engine
from bench.proxies_client import CONVERSATIONS, Shape
from bench.rows import Row, median, row
from cachefleet_core.tenancy import DEFAULT_TENANT, FleetKey, tenant_salt
from cachefleet_local.models.tiny_model import tiny_model_path

CHAT: Final = "/v1/chat/completions"
EXACT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.05
"""In which the agent, on the engine's core, is done with what the request before has brought."""
BEYOND_MS: Final = 1.0
"""What may be added besides rendering."""
_DIRECT, _RENDER, _THROUGH = "direct", "render", "through"


def exact_rows(folder: Path, shapes: Sequence[Shape], *, rounds: int) -> list[Row]:
    """Rendering and all else that is added, apart."""
    key = FleetKey.generate()
    mine, core = cores(2)
    with (
        fake_engine(folder, key.worker_key(POOL), core=mine, tokenizer=tiny_model_path()) as engine,
        control_plane(folder, key, engine, core=core, agent_core=mine) as running,
    ):
        return [one for shape in shapes for one in asyncio.run(_rows(shape, engine, running, key, rounds=rounds))]


async def _rows(shape: Shape, engine: Engine, running: Running, key: FleetKey, *, rounds: int) -> list[Row]:
    salt = f',"cache_salt":"{tenant_salt(key.salt_key, DEFAULT_TENANT)}"}}'.encode()
    worker = {"authorization": f"Bearer {key.worker_key(POOL)}"}
    ways = {
        _DIRECT: (engine.url + CHAT, worker, salt),
        _RENDER: (f"{engine.url}{CHAT}/render", worker, salt),
        _THROUGH: (running.gateway + CHAT, {}, b"}"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    async with aiohttp.ClientSession() as http:
        await _until_exact(http, running, shape)
        bodies = shape.bodies()
        for body in itertools.islice(bodies, CONVERSATIONS):  # else the way that comes first would fill the cache
            await _seconds(http, *ways[_DIRECT][:2], body[:-1] + salt, stream=shape.stream)
        for number, body in enumerate(itertools.islice(bodies, rounds)):
            order = list(ways)[number % len(ways) :] + list(ways)[: number % len(ways)]
            for way, (url, headers, end) in ((way, ways[way]) for way in order):
                await asyncio.sleep(PAUSE_SECONDS)
                # Its own question for each way: else the second would find more in cache than the first.
                data = body.replace(b"question", b"question %s" % way.encode())[:-1] + end
                times[way].append(await _seconds(http, url, headers, data, stream=shape.stream))
    # Of each prompt apart, then the median: what else the machine does falls on all ways of one alike.
    trios = list(zip(*(times[way] for way in (_DIRECT, _RENDER, _THROUGH)), strict=True))
    added = 1000 * median([through - direct for direct, _, through in trios])
    beyond = 1000 * median([through - direct - rendering for direct, rendering, through in trios])
    bar = Bar("proxies", "", "ours", BEYOND_MS)
    return [
        row(f"{shape.name}: added p50, exact rung", added),
        row(f"{shape.name}: of it rendering, exact rung", 1000 * median(times[_RENDER])),
        row(f"{shape.name}: of it all else, exact rung", beyond) | {"bar": str(bar), "kept": bar.holds(beyond)},
    ]


async def _seconds(
    http: aiohttp.ClientSession, url: str, headers: dict[str, str], data: bytes, *, stream: bool
) -> float:
    """To the first byte of a stream's body, else to the end."""
    began = time.perf_counter()
    async with http.post(url, data=data, headers=headers | {"content-type": "application/json"}) as answer:
        await answer.content.readany()
        first = time.perf_counter() - began
        await answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{url} answered {answer.status}")
        return first if stream else time.perf_counter() - began


async def _until_exact(http: aiohttp.ClientSession, running: Running, shape: Shape) -> None:
    body = next(shape.bodies())
    async with asyncio.timeout(EXACT_SECONDS):
        while True:
            headers = {"content-type": "application/json"}
            async with http.post(running.gateway + CHAT, data=body, headers=headers) as answer:
                await answer.read()
                if answer.headers.get("x-cachefleet-knowledge") == "exact":
                    return
            await asyncio.sleep(0.2)
