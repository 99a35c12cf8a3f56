"""The gateway as a proxy, beside sglang-router, vllm-router and SMG in their cache-aware modes.

    python -m bench.proxies                            # about twenty minutes
    python -m bench.proxies --rounds 1 --streams 200   # whether it runs

Each proxy is a process on a core of its own, before the same four engines, which answer at once from memory and share
the other core with the client. All get the same bodies in the same order, from the same client, in turns: request by
request on one connection for what a proxy adds; WINDOW_SECONDS at a time on CONNECTIONS without pause for what it gets
through. Answers are checked to be equal before anything is timed. Requests per second of CPU are what a core gets
through when it has nothing else to do; CPU is that of the proxy's process, all threads. Ours decides on the approximate
rung, from the prompt's text, as the peers do; the exact rung is measured for itself, before a fake engine that renders,
and what rendering takes is told apart. Requests that a worker holds, which is the exact rung where workers have the
plugin, are measured beside the approximate one, before 1, 100 and 1,000 workers (bench.proxies_held). Last, each proxy
by itself holds many streams open (bench.proxies_memory). Peers are installed from their packages the first time. Rows
go to bench/results/proxies.json; the command fails where an answer is wrong, not where a bar is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from bench.bars import Bar
from bench.gateway import cpu_seconds
from bench.parts import cores
from bench.proxies_client import Caller, Heard, ProxyError, Shape, latencies, load
from bench.proxies_engine import engines
from bench.proxies_exact import exact_rows
from bench.proxies_held import held_rows
from bench.proxies_memory import STREAMS, Start, memory_rows
from bench.proxies_sides import OURS, PEER_ROUTERS, Proxy, ours, routed
from bench.rows import Row, median, percentile, row

RESULTS: Final = Path(__file__).parent / "results" / "proxies.json"
WORKERS: Final = 4
CONNECTIONS: Final = 16
WINDOW_SECONDS: Final = 2.0
TURNS: Final = 40
"""Requests of one connection and round."""
BODIES: Final = 640
ADDED_MS: Final = {False: 0.35, True: 0.4}
"""What may be added at 2 KiB, whole and streamed."""
LARGE_ADDED_MS: Final = 1.0
LONG: Final = 64
"""Tokens, and so events, of a long answer."""
SHAPES: Final = (
    *(Shape(size, stream) for size in (32 * 1024, 2 * 1024) for stream in (True, False)),
    Shape(2 * 1024, stream=True, tokens=LONG),
)
SMALL: Final = 2 * 1024
LATE_PEER: Final = "vllm-router"
"""Whose slowest requests ours are held to."""


class Figures:
    """What was measured of one proxy and shape, round by round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.loaded: list[float] = []
        """Seconds of each request on CONNECTIONS."""
        self.rates: list[float] = []
        self.per_cpu: list[float] = []


async def check(proxies: Sequence[Proxy], direct: str, shape: Shape) -> None:
    """A wrong answer voids the measurement."""
    for body in itertools.islice(shape.bodies(), 3):
        heard = {}
        for name, url in [("direct", direct), *((proxy.name, proxy.url) for proxy in proxies)]:
            caller = await Caller.to(url)
            heard[name] = (await caller.ask(body)).text
            caller.close()
        for name, text in heard.items():
            if text != heard["direct"]:
                raise ProxyError(f"{name} answers otherwise:\n{heard['direct'][:600]!r}\n{text[:600]!r}")


async def measure(
    proxies: Sequence[Proxy], direct: str, shape: Shape, *, rounds: int
) -> tuple[dict[str, Figures], list[float]]:
    """Figures by proxy, and seconds without any."""
    await check(proxies, direct, shape)
    figures = {proxy.name: Figures() for proxy in proxies}
    straight: list[float] = []
    fresh = shape.bodies()
    for number in range(rounds):
        turns = list(itertools.islice(fresh, TURNS))
        urls = [direct, *(proxy.url for proxy in proxies)]
        seconds = await latencies(urls, turns, pick=_seconds(shape))
        straight += seconds[0]
        bodies = list(itertools.islice(fresh, BODIES))
        for proxy, times in zip(proxies, seconds[1:], strict=True):
            figures[proxy.name].seconds += times
        for proxy in (proxies, proxies[::-1])[number % 2]:
            await _window(proxy, shape, bodies, figures[proxy.name])
    return figures, straight


def _seconds(shape: Shape) -> Callable[[Heard], float]:
    """Those to the first byte of a stream's body, else to the end."""
    return lambda heard: heard.first if shape.stream else heard.whole


async def _window(proxy: Proxy, shape: Shape, bodies: Sequence[bytes], figures: Figures) -> None:
    before = cpu_seconds(proxy.pid)
    answered, seconds = await load(
        proxy.url, bodies, connections=CONNECTIONS, seconds=WINDOW_SECONDS, pick=_seconds(shape)
    )
    figures.loaded += answered
    figures.rates.append(len(answered) / seconds)
    figures.per_cpu.append(len(answered) / max(cpu_seconds(proxy.pid) - before, 1e-9))


def rows_of(shape: Shape, figures: dict[str, Figures], straight: Sequence[float]) -> list[Row]:
    """Ours beside each peer, with the bars."""
    own = figures[OURS]
    out: list[Row] = []
    for peer in PEER_ROUTERS:
        rows = _compared(shape, own, figures[peer.name], straight, name=peer.name)
        rows[0] = judged(rows[0], Bar("proxies", "", "ratio", peer.bar(stream=shape.stream), at_least=True))
        if peer.package == LATE_PEER:
            rows[-1] = judged(rows[-1], Bar("proxies", "", "ratio", 1.0))
        out += rows
    value = row(f"{shape.name}: added p50, approximate rung", 1000 * added(own.seconds, straight, 50))
    limit = ADDED_MS[shape.stream] if shape.characters <= SMALL else LARGE_ADDED_MS
    return [*out, judged(value, Bar("proxies", "", "ours", limit))]


def _compared(shape: Shape, own: Figures, other: Figures, straight: Sequence[float], *, name: str) -> list[Row]:
    """Ours beside another: by CPU first, the slowest requests last."""
    told, beside = shape.name, f"beside {name}"
    rates = [
        row(f"{told}: per second of CPU, {beside}", *_medians("per_cpu", own, other)),
        row(f"{told}: at {CONNECTIONS} connections, {beside}", *_medians("rates", own, other)),
    ]
    delays = [
        row(f"{told}: added p{share}, {beside}", *(1000 * added(one.seconds, straight, share) for one in (own, other)))
        for share in (50, 95)
    ]
    late = row(f"{told}: p99 at {CONNECTIONS} connections, {beside}", *_p99(own, other))
    return [*(one | {"unit": "requests/s"} for one in rates), *delays, late]


def _p99(*figures: Figures) -> list[float]:
    return [1000 * percentile(one.loaded, 99) for one in figures]


def _medians(name: str, *figures: Figures) -> list[float]:
    return [median(getattr(one, name)) for one in figures]


def judged(one: Row, bar: Bar) -> Row:
    return one | {"bar": str(bar), "kept": bar.holds(one[bar.column])}


def added(through: Sequence[float], direct: Sequence[float], share: int) -> float:
    return percentile(through, share) - percentile(direct, share)


async def beside(folder: Path, shapes: Sequence[Shape], *, rounds: int) -> list[Row]:
    """All that needs the peers."""
    _, core = cores(2)
    out: list[Row] = []
    async with engines(WORKERS) as urls:
        with ExitStack() as stack:
            starts = [
                ours(folder, urls, core=core),
                *(routed(peer, folder, urls, core=core) for peer in PEER_ROUTERS),
            ]
            # They are waited for in a thread: their probes are answered in this one.
            proxies = [await asyncio.to_thread(stack.enter_context, start) for start in starts]
            for shape in shapes:
                found = rows_of(shape, *await measure(proxies, urls[0], shape, rounds=rounds))
                show(found)
                out += found
    return out


async def crowded(folder: Path, *, streams: int) -> list[Row]:
    """Memory with many open streams, of each proxy by itself."""
    _, core = cores(2)
    mine = partial(ours, folder, core=core, upstream_connections=str(2 * streams))
    starts: dict[str, Start] = {OURS: partial(mine, name=f"{OURS} alone")}
    starts |= {peer.name: partial(routed, peer, folder, core=core) for peer in PEER_ROUTERS}
    out: list[Row] = []
    for name, start in starts.items():
        found = await memory_rows(name, start, streams=streams, judged=name == OURS)
        show(found)
        out += found
    return out


def show(rows: Sequence[Row]) -> None:
    for one in rows:
        figures = "".join("" if one[name] is None else f"{one[name]:>10.4g}" for name in ("ours", "peer", "ratio"))
        verdict = f"   {one['bar']} {'kept' if one['kept'] else 'MISSED'}" if "bar" in one else ""
        print(f"{one['row']:<72}{figures} {one['unit']}{verdict}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="windows of each proxy and shape")
    parser.add_argument("--streams", type=int, default=STREAMS, help="held open, to see what memory they take")
    given = parser.parse_args()
    mine, _ = cores(2)
    os.sched_setaffinity(0, mine)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores")
    print(f"{'':<72}{'ours':>10}{'peer':>10}{'ratio':>10}")
    with tempfile.TemporaryDirectory() as name:
        try:
            result = uvloop.run(beside(Path(name), SHAPES, rounds=given.rounds))
            exact = exact_rows(Path(name), SHAPES[:2], rounds=10 * given.rounds)
            show(exact)
            held = held_rows(Path(name), rounds=given.rounds)
            show(held)
            many = uvloop.run(crowded(Path(name), streams=given.streams))
        except ProxyError as error:
            sys.exit(str(error))
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(result + exact + held + many, indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")


if __name__ == "__main__":
    main()
