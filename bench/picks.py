"""CPU of a pick: what the control plane takes to have Envoy send one request, by number of workers.

    python -m bench.picks

The approximate rung, prompts of 2 KiB, chats answered whole; Envoy is played by another process, so that nothing of it
is in the figure. All of a request is: its head and body, the choice, its answer's head and body, its record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import grpc

from bench.gateway import cpu_seconds
from bench.parts import cores
from bench.proxies_engine import MODEL
from bench.proxies_sides import ours
from bench.rows import Row, median, row
from cachefleet_local.fleet.ports import take_ports
from tests.controlplane.gateway.picker.envoy_stub import EnvoyStub

FLEETS: Final = (1, 100, 1000)
CONNECTIONS: Final = 8
PROMPTS: Final = 200
BODY: Final = 2048
ANSWER: Final = json.dumps(
    {"object": "chat.completion", "choices": [], "usage": {"prompt_tokens": 500, "completion_tokens": 8}}
).encode()


def measured(workers: int, *, requests: int, rounds: int) -> Row:
    """Microseconds of CPU of a request: the median of some rounds."""
    mine, core = cores(2)
    port = take_ports({"picker": 0})["picker"]
    urls = [f"http://10.{number // 250}.0.{number % 250 + 1}:8000" for number in range(workers)]
    with (
        tempfile.TemporaryDirectory() as folder,
        ours(Path(folder), urls, core=core, picker_port=str(port)) as plane,
    ):
        play(port, requests // 4, mine)
        spent = []
        for _ in range(rounds):
            before = cpu_seconds(plane.pid)
            play(port, requests, mine)
            spent.append((cpu_seconds(plane.pid) - before) / requests * 1e6)
    return row(f"{workers} workers", median(spent), unit="us")


def play(port: int, requests: int, core: set[int]) -> None:
    """Have another process play Envoy."""
    command = [sys.executable, "-m", "bench.picks", "--envoy", str(port), "--requests", str(requests)]
    subprocess.run(command, check=True, preexec_fn=lambda: os.sched_setaffinity(0, core))


async def envoy(port: int, requests: int) -> None:
    """Ask for requests on several streams at once, as Envoy does, and tell of their answers."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = EnvoyStub(None, channel, "")  # type: ignore[arg-type]

        async def some(first: int) -> None:
            for number in range(first, requests, CONNECTIONS):
                text = f"prompt {number % PROMPTS} " * (BODY // 12)
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}]}
                asking, picked = await stub.ask(body)
                if picked.status:
                    raise RuntimeError(f"refused: {picked.body!r}")
                await asking.answered(ANSWER, served=picked.endpoints[0])

        await asyncio.gather(*(some(first) for first in range(CONNECTIONS)))


def main() -> None:
    """Print a row for each number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--envoy", type=int, metavar="PORT")
    options = parser.parse_args()
    if options.envoy:
        return asyncio.run(envoy(options.envoy, options.requests))
    for workers in FLEETS:
        print(measured(workers, requests=options.requests, rounds=options.rounds), flush=True)
    return None


if __name__ == "__main__":
    main()
