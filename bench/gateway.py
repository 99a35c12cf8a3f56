"""What the gateway adds to a request, against going direct to the same worker.

    python -m bench.gateway                 # in front of a fake engine that computes in no time
    python -m bench.gateway --engine vllm   # in front of real vLLM on the CPU, with a tiny model
    python -m bench.gateway --profile       # where the CPU of a request goes instead, by part (bench.gateway_profile)
    python -m bench.gateway --recorded      # what recording streams costs instead (bench.gateway_recorded)
    python -m bench.gateway --counts calls  # how many a request takes instead; or instructions (bench.gateway_counts)

Direct and through the gateway take turns: request by request on one connection; second by second on sixteen, which
ask a few times a second each (so that what is measured is delay, not a queue) or without pause (what one core gets
through). Rendering is part of what is added: the gateway asks the worker's renderer for the prompt's ids; a column
shows what that takes by itself. Answers are checked to be equal, byte for byte, before anything is timed. Rows go to
bench/results/gateway.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench import gateway_counts, gateway_profile, gateway_recorded
from bench.parts import POOL, Engine, Running, control_plane, cores, fake_engine
from cachefleet_core.tenancy import DEFAULT_TENANT, FleetKey, tenant_salt

RESULTS: Final = Path(__file__).parent / "results" / "gateway.json"
CHAT: Final = "/v1/chat/completions"
WORDS: Final = "cache fleet worker prefix block token request answer engine router prompt system "
TICKS: Final = os.sysconf("SC_CLK_TCK")
_NUMBERS: Final = itertools.count()
_VARYING: Final = re.compile(rb'"id":"[^"]*"|"created":\d+')


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two ways to the worker."""

    url: str
    headers: dict[str, str]
    extra: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request; ``pause`` is the time between two of one connection, None for turns, 0 for no pause."""

    stream: bool
    connections: int
    characters: int
    pause: float | None = None

    @property
    def name(self) -> str:
        what = "stream, first byte" if self.stream else "whole answer"
        how = f"{self.connections} connection" + "s" * (self.connections > 1)
        pace = f", {1 / self.pause:g}/s each" if self.pause else "" if self.pause is None else ", no pause"
        return f"{what}, {self.characters} characters, {how}{pace}"


@dataclass(slots=True)
class Times:
    """Seconds of each way; seconds of CPU of the gateway for a request; requests a second of each way."""

    direct: list[float]
    through: list[float]
    cpu: float
    direct_rate: float
    through_rate: float


SHAPES: Final = [
    Shape(stream, connections, characters, pause)
    for characters in (1024, 8192)
    for connections, pause in ((1, None), (16, 0.2), (16, 0.0))
    for stream in (True, False)
]
WINDOW_SECONDS: Final = 1.0


def body(model: str, shape: Shape) -> dict[str, Any]:
    """A prompt of which all but the end is the same each time, as in a conversation; none comes twice."""
    text = (WORDS * (shape.characters // len(WORDS) + 1))[: shape.characters]
    messages = [{"role": "system", "content": text}, {"role": "user", "content": f"question {next(_NUMBERS)}"}]
    return {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0, "stream": shape.stream}


async def ask(http: aiohttp.ClientSession, side: Side, asked: dict[str, Any]) -> tuple[float, bytes]:
    """Seconds to the first byte of the body, for a stream, or to the end; and the answer."""
    data = json.dumps(asked | side.extra).encode()
    began = time.perf_counter()
    async with http.post(side.url + CHAT, data=data, headers=side.headers) as answer:
        first = await answer.content.readany()
        seconds = time.perf_counter() - began
        rest = await answer.read()
        if not asked["stream"]:
            seconds = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"{side.url} answered {answer.status}: {(first + rest)[:500]!r}")
        return seconds, first + rest


async def check(http: aiohttp.ClientSession, direct: Side, through: Side, asked: dict[str, Any]) -> None:
    """A wrong answer voids the measurement."""
    for side in (direct, through):  # both find the same in cache
        await ask(http, side, asked)
    expected, got = [_VARYING.sub(b"", (await ask(http, side, asked))[1]) for side in (direct, through)]
    if expected != got:
        raise RuntimeError(f"the gateway's answer differs:\n{expected[:1000]!r}\n{got[:1000]!r}")


async def measure(shape: Shape, engine: Engine, running: Running, direct: Side, through: Side, *, rounds: int) -> Times:
    """Both ways in turns, until each has been asked ``rounds`` times."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await check(http, direct, through, body(engine.model, shape))
        collected: dict[str, list[float]] = {direct.url: [], through.url: []}
        spent, cpu = dict.fromkeys(collected, 0.0), 0.0
        while min(map(len, collected.values())) < rounds:
            for side in (direct, through):
                before, began = cpu_seconds(running.pid), time.perf_counter()
                collected[side.url] += await window(http, side, shape, engine.model)
                spent[side.url] += time.perf_counter() - began
                cpu += cpu_seconds(running.pid) - before if side is through else 0.0
    ours, peer = collected[through.url], collected[direct.url]
    return Times(peer, ours, cpu / len(ours), len(peer) / spent[direct.url], len(ours) / spent[through.url])


async def window(http: aiohttp.ClientSession, side: Side, shape: Shape, model: str) -> list[float]:
    """One request of one connection, or a second's worth of all."""
    if shape.pause is None:
        return [(await ask(http, side, body(model, shape)))[0]]
    end = time.perf_counter() + WINDOW_SECONDS
    gathered = await asyncio.gather(
        *(connection(http, side, shape, model, end=end, number=n) for n in range(shape.connections))
    )
    return [seconds for part in gathered for seconds in part]


async def connection(
    http: aiohttp.ClientSession, side: Side, shape: Shape, model: str, *, end: float, number: int
) -> list[float]:
    """What one connection measures until ``end``; connections begin spread over their pause."""
    pause = shape.pause or 0.0
    due = time.perf_counter() + pause * number / shape.connections
    out = []
    while due < end:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        out.append((await ask(http, side, body(model, shape)))[0])
        due = max(due + pause, time.perf_counter())
    return out


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def rendering(engine: Engine, direct: Side, shape: Shape, *, rounds: int) -> float:
    """The median of what the worker's renderer takes for such a prompt, asked as the gateway asks it."""
    seconds = []
    async with aiohttp.ClientSession() as http:
        for _ in range(rounds):
            data = json.dumps(body(engine.model, shape) | direct.extra).encode()
            began = time.perf_counter()
            async with http.post(f"{direct.url}{CHAT}/render", data=data, headers=direct.headers) as answer:
                await answer.read()
            seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


async def until_exact(through: Side, engine: Engine) -> None:
    """Wait until an agent has reported: decisions then cost what they cost in earnest."""
    asked = body(engine.model, SHAPES[0])
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while True:
            async with http.post(through.url + CHAT, json=asked, headers=through.headers) as answer:
                await answer.read()
                if answer.headers.get("x-cachefleet-knowledge") == "exact":
                    return
            await asyncio.sleep(0.2)


def rows(shape: Shape, times: Times, render: float) -> Iterator[dict[str, Any]]:
    """What is printed, as rows of (row, ours, peer, ratio, unit): the peer of what is added is rendering alone."""
    for share in (50, 95):
        yield row(
            f"{shape.name}, p{share}", *(percentile(part, share) * 1000 for part in (times.through, times.direct))
        )
    added = percentile(times.through, 50) - percentile(times.direct, 50)
    yield row(f"{shape.name}, added p50", added * 1000, render * 1000)
    yield row(f"{shape.name}, gateway CPU a request", times.cpu * 1000, None)
    yield row(f"{shape.name}, rate", times.through_rate, times.direct_rate, unit="requests/s")


def row(name: str, ours: float, peer: float | None, *, unit: str = "ms") -> dict[str, Any]:
    return {"row": name, "ours": ours, "peer": peer, "ratio": ours / peer if peer else None, "unit": unit}


def percentile(values: list[float], share: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


COLUMNS: Final = ("direct", "gateway", "added p50", "added p95", "rendering", "CPU", "requests/s")


def table(shape: Shape, times: Times, render: float) -> None:
    added = [percentile(times.through, share) - percentile(times.direct, share) for share in (50, 95)]
    figures = (percentile(times.direct, 50), percentile(times.through, 50), *added, render, times.cpu)
    print(
        f"{shape.name:<62}" + "".join(f"{f * 1000:>11.2f}" for f in figures) + f"{times.through_rate:>11.0f}",
        flush=True,
    )


async def run(engine: Engine, running: Running, key: FleetKey, *, rounds: int) -> list[dict[str, Any]]:
    salt = tenant_salt(key.salt_key, DEFAULT_TENANT)
    json_type = {"content-type": "application/json"}
    direct = Side(engine.url, {"authorization": f"Bearer {key.worker_key(POOL)}", **json_type}, {"cache_salt": salt})
    through = Side(running.gateway, json_type, {})
    await until_exact(through, engine)
    print(f"{'milliseconds, p50 where not said':<62}" + "".join(f"{column:>11}" for column in COLUMNS))
    out: list[dict[str, Any]] = []
    for shape in SHAPES:
        times = await measure(shape, engine, running, direct, through, rounds=rounds)
        render = await rendering(engine, direct, shape, rounds=20)
        table(shape, times, render)
        out += rows(shape, times, render)
    return out


@contextlib.contextmanager
def vllm_engine(folder: Path, key: str, *, core: set[int]) -> Iterator[Engine]:
    """Real vLLM with the tiny model."""
    from cachefleet_local.models.tiny_model import tiny_model_path  # noqa: PLC0415 - only where it is asked for
    from e2e.engine.vllm import VllmOptions, running_vllm  # noqa: PLC0415 - as above

    options = VllmOptions(forked=False, api_key=key, max_model_len=8192, num_blocks=512)
    with running_vllm(options, tiny_model_path(), folder / "vllm.log") as server:
        os.sched_setaffinity(server.pid, core)
        yield Engine(
            url=server.url,
            events=server.events_endpoint,
            replay=server.replay_endpoint,
            model=options.model,
            block_size=options.block_size,
            max_model_len=options.max_model_len,
            resource="",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("fake", "vllm"), default="fake")
    parser.add_argument("--rounds", type=int, default=300, help="requests a row and way, at least")
    parser.add_argument("--profile", action="store_true", help="print where the gateway's CPU goes, and end")
    parser.add_argument("--functions", action="store_true", help="with --profile: also by function")
    parser.add_argument("--recorded", action="store_true", help="print what recording streams costs, and end")
    parser.add_argument("--counts", choices=gateway_counts.COUNTED, help="print how many a request takes, and end")
    given = parser.parse_args()
    if given.counts:
        gateway_counts.run(given.counts, requests=max(1, given.rounds // 10))
        return
    if given.recorded:
        gateway_recorded.run(rounds=max(1, given.rounds // 30))
        return
    if given.profile:
        gateway_profile.run(rounds=max(1, given.rounds // 20), functions=given.functions)
        return
    key = FleetKey.generate()
    mine, gateway_core = cores(2)
    os.sched_setaffinity(0, mine)
    made = {"fake": fake_engine, "vllm": vllm_engine}[given.engine]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (
            made(folder, key.worker_key(POOL), core=mine) as engine,
            control_plane(folder, key, engine, core=gateway_core, agent_core=mine) as running,
        ):
            result = asyncio.run(run(engine, running, key, rounds=given.rounds))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"engine": given.engine, "rows": result}, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
