"""What traces cost: the control plane's CPU a request with traces off, of 1 % and of all requests.

    python -m bench.tracing

Three control planes before one fake engine that computes in no time take turns, some hundred requests each; spans go
to a collector that takes and forgets them. The ratio is the median over the turns, each against its own turn without
traces. The first row is traces off against off: what chance makes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import aiohttp

from bench.gateway import Shape, Side, ask, body, until_exact
from bench.parts import POOL, Engine, Running, control_plane, cores, fake_engine
from cachefleet_core.tenancy import FleetKey

RATIOS: Final = {"off": None, "off again": None, "1 %": "0.01", "100 %": "1"}
CONNECTIONS: Final = 8
JSON: Final = {"content-type": "application/json"}


class Forgetting(BaseHTTPRequestHandler):
    """A collector."""

    taken = 0

    def do_POST(self) -> None:
        Forgetting.taken += len(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def collector() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Forgetting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@contextlib.contextmanager
def traced(url: str, ratio: str | None) -> Iterator[None]:
    """The variables that a process started within inherits."""
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    if ratio is not None:
        os.environ.update(told | {"OTEL_TRACES_SAMPLER_ARG": ratio})
    try:
        yield
    finally:
        for name in (*told, "OTEL_TRACES_SAMPLER_ARG"):
            os.environ.pop(name, None)


def nanoseconds(pid: int) -> int:
    """What all threads of a process have computed."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


async def turn(running: Running, engine: Engine, shape: Shape, requests: int) -> float:
    """Seconds of the control plane's CPU a request."""
    side = Side(running.gateway, JSON, {})
    async with aiohttp.ClientSession() as http:

        async def connection() -> None:
            for _ in range(requests // CONNECTIONS):
                await ask(http, side, body(engine.model, shape))

        before = nanoseconds(running.pid) / 1e9
        await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
        return (nanoseconds(running.pid) / 1e9 - before) / (requests // CONNECTIONS * CONNECTIONS)


async def compare(planes: dict[str, Running], engine: Engine, *, turns: int, requests: int) -> None:
    for running in planes.values():
        await until_exact(Side(running.gateway, JSON, {}), engine)
    for shape in (
        Shape(stream=True, connections=8, characters=1024),
        Shape(stream=False, connections=8, characters=1024),
    ):
        costs: dict[str, list[float]] = {name: [] for name in planes}
        for number in range(turns):
            order = list(planes) if number % 2 else list(reversed(planes))
            for name in order:
                costs[name].append(await turn(planes[name], engine, shape, requests))
        for name, own in costs.items():
            ratios = [mine / other for mine, other in zip(own, costs["off"], strict=True)]
            kind = "stream" if shape.stream else "whole answer"
            share, error = statistics.median(ratios) - 1, statistics.stdev(ratios) / len(ratios) ** 0.5
            cost = statistics.median(own) * 1e6
            print(
                f"{kind:<13} traces {name:<9} {cost:7.0f} us of CPU a request {share:+7.1%} +- {error:.1%}", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--requests", type=int, default=80, help="of each turn")
    given = parser.parse_args()
    key = FleetKey.generate()
    mine, gateway_core = cores(2)
    os.sched_setaffinity(0, mine)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        url = stack.enter_context(collector())
        (engine_folder := Path(name) / "engine").mkdir()
        engine = stack.enter_context(fake_engine(engine_folder, key.worker_key(POOL), core=mine))
        planes: dict[str, Running] = {}
        for what, ratio in RATIOS.items():
            (folder := Path(name) / what).mkdir()
            with traced(url, ratio):
                made = control_plane(folder, key, engine, core=gateway_core, agent_core=mine)
                planes[what] = stack.enter_context(made)
        asyncio.run(compare(planes, engine, turns=given.turns, requests=given.requests))
        print(f"{Forgetting.taken} bytes of spans")


if __name__ == "__main__":
    main()
