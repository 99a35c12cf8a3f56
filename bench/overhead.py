"""What the plugin costs where no feature of it is used: CPU seconds a request, with it against without.

    python -m bench.overhead                # as part of bench.worker; by itself with more on the screen
    python -m bench.overhead --control      # stock against stock: what the method itself makes of no difference

Two real servers stand side by side. A pair is a few turns; in each the same batch of requests goes to one, then to the
other, and the order alternates. Counted is the CPU time, user and system, of every process of the server that is asked;
what a pair says is the median of its turns, since the machine's other work still reaches us through shared caches.
Servers are started anew now and then: one process may be a little slower than its like for as long as it lives. Before
anything is timed both answer some requests one by one, and the answers must be equal.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from bench import rows
from bench.workload import Asked, ask_all, requests
from cachefleet_local.models.tiny_model import tiny_model_path
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

PAIRS: Final = 20
STARTS: Final = 4
TURNS: Final = 9
BATCH: Final = 16
AT_ONCE: Final = 8
WARM_BATCHES: Final = 8
CHECKED: Final = 16
REQUEST_SECONDS: Final = 120.0

STOCK: Final = VllmOptions(forked=False, num_blocks=512, max_batched_tokens=512, max_model_len=2048)
PLUGIN: Final = replace(STOCK, plugin=True)

Pair = tuple[float, float]
"""CPU seconds a request: with the plugin, without."""


def run(*, pairs: int = PAIRS, starts: int = STARTS, control: bool = False) -> list[rows.Row]:
    """The rows of this part. RuntimeError where the two servers' answers differ."""
    measured: list[Pair] = []
    for start in range(starts):
        share = pairs * (start + 1) // starts - pairs * start // starts
        with servers(STOCK if control else PLUGIN, STOCK) as both:
            measured += asyncio.run(compare(*both, pairs=share, first=1000 * start))
    return result(measured)


def result(measured: list[Pair]) -> list[rows.Row]:
    """Mean and upper end of the 95 % interval of what is added, in percent, and the two costs in milliseconds."""
    added = [100 * (with_it / without - 1) for with_it, without in measured]
    ours, peer = (statistics.fmean(side) * 1000 for side in zip(*measured, strict=True))
    return [
        rows.row("no feature used, CPU a request", ours, peer, unit="ms"),
        rows.row("no feature used, CPU added, mean", statistics.fmean(added), unit="%"),
        rows.row("no feature used, CPU added, upper end of 95 %", rows.interval(added)[1], unit="%"),
    ]


@contextmanager
def servers(*options: VllmOptions) -> Iterator[list[VllmServer]]:
    """One server for each, started together."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack, ThreadPoolExecutor() as pool:
        folders = [Path(name) / str(place) for place in range(len(options))]
        for folder in folders:
            folder.mkdir()
        model = tiny_model_path()
        managers = [running_vllm(o, model, f / "vllm.log") for o, f in zip(options, folders, strict=True)]
        starting = [pool.submit(manager.__enter__) for manager in managers]
        for manager, started in zip(managers, starting, strict=True):
            if started.exception() is None:
                stack.push(manager)
        yield [started.result() for started in starting]


async def compare(ours: VllmServer, peer: VllmServer, *, pairs: int, first: int) -> list[Pair]:
    """So many pairs of batches; ``first`` numbers the requests."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
    async with aiohttp.ClientSession(headers=ours.headers, timeout=timeout) as http:
        await check(http, ours, peer, requests(ours.options.model, range(-CHECKED, 0)))
        for number in range(WARM_BATCHES):
            for server in (ours, peer):
                await cpu_a_request(http, server, _batch(server, first + number))
        return [await _pair(http, ours, peer, first + WARM_BATCHES + TURNS * number) for number in range(pairs)]


async def check(http: aiohttp.ClientSession, ours: VllmServer, peer: VllmServer, batch: list[Asked]) -> None:
    """A wrong answer voids the measurement. One request at a time: then both compute in the same batches."""
    got, expected = [await ask_all(http, server.url, batch, at_once=1) for server in (ours, peer)]
    for mine, its, asked in zip(got, expected, batch, strict=True):
        if mine != its:
            raise RuntimeError(f"answers to {asked.path} differ:\n{mine}\n{its}")


async def cpu_a_request(http: aiohttp.ClientSession, server: VllmServer, batch: list[Asked]) -> float:
    before = cpu_seconds(server.pid)
    await ask_all(http, server.url, batch, at_once=AT_ONCE)
    return (cpu_seconds(server.pid) - before) / len(batch)


def cpu_seconds(pid: int) -> float:
    """User and system time so far of a process and all below it; Linux tells it by thread, in nanoseconds."""
    root = psutil.Process(pid)
    pids = [process.pid for process in (root, *root.children(recursive=True))]
    tasks = (task for each in pids for task in Path(f"/proc/{each}/task").glob("*/schedstat"))
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


async def _pair(http: aiohttp.ClientSession, ours: VllmServer, peer: VllmServer, first: int) -> Pair:
    """The turn of the median ratio."""
    turns = [await _turn(http, ours, peer, first + number) for number in range(TURNS)]
    pair = sorted(turns, key=lambda turn: turn[0] / turn[1])[TURNS // 2]
    print(f"  {pair[0] * 1000:.2f} ms a request against {pair[1] * 1000:.2f} ms", flush=True)
    return pair


async def _turn(http: aiohttp.ClientSession, ours: VllmServer, peer: VllmServer, number: int) -> Pair:
    order = (ours, peer) if number % 2 else (peer, ours)
    spent = {server.url: await cpu_a_request(http, server, _batch(server, number)) for server in order}
    return spent[ours.url], spent[peer.url]


def _batch(server: VllmServer, number: int) -> list[Asked]:
    return requests(server.options.model, range(BATCH * number, BATCH * (number + 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--control", action="store_true", help="stock vLLM on both sides")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--starts", type=int, default=STARTS, help="how often the servers are started anew")
    given = parser.parse_args()
    for line in run(pairs=given.pairs, starts=given.starts, control=given.control):
        print(line)


if __name__ == "__main__":
    main()
