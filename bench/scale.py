"""A control plane of many workers: what reports cost a replica, and what they do to requests beside them.

    python -m bench.scale                                        # 10, 100 and 1,000 workers, some ten minutes
    python -m bench.scale --workers 100 --seconds 30 --rate 2000

Replicas are processes of their own. Agents are fakes that are true to the protocol (``scale_agents``): in a few
processes, on this machine too, and so precomputed that they cost little; still they share its cores, and their CPU is
told beside the replica's. Requests are completions of token ids, whose blocks some workers hold, before an engine that
answers at once; what they take is what a client sees.

Everything is checked before it is told: at the end each replica holds as many blocks of each worker as its agent
believes, every digest agreed at each State, and every request went to a worker that holds its prompt. Columns are
those of the first replica: cores of CPU idle (States alone), with changing blocks, and with requests as well; its
memory; frames in a second; milliseconds of requests at the median and the 99th percentile without and with reports;
snapshots asked for; seconds until a replica that joins holds everything. Results go to bench/results/scale.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop

from bench.agent_idle import cpu_of, memory_of
from bench.parts import POOL, Engine, Running, plane, status_of
from bench.proxies_engine import MODEL, engines
from bench.rows import percentile
from bench.scale_agents import ScaleOptions
from bench.scale_requests import CONTRACT, Requests
from cachefleet_core.tenancy import FleetKey

RESULTS: Final = Path(__file__).parent / "results" / "scale.json"
WARM_SECONDS, SETTLE_SECONDS, SETTLED_SECONDS = 300.0, 1.5, 30.0
PROMPTS: Final = 32


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is asked for."""

    workers: int
    rate: float
    held: int
    seconds: float
    requests: float
    replicas: int
    processes: int
    profile: Path | None


@dataclass
class Outcome:
    """A row of the table."""

    workers: int
    rate: float
    warm: float = 0.0
    idle: float = 0.0
    busy: float = 0.0
    asked: float = 0.0
    agents: float = 0.0
    """Cores of all agents' processes while blocks change."""
    memory: float = 0.0
    frames: float = 0.0
    quiet_ms: tuple[float, float] = (0.0, 0.0)
    busy_ms: tuple[float, float] = (0.0, 0.0)
    decision_ms: tuple[float, float] = (0.0, 0.0)
    """Of the decisions for requests while blocks change."""
    resyncs: float = 0.0
    join: float = 0.0
    problems: list[str] = field(default_factory=list)


class Replica:
    """A running replica, and what its process and its metrics tell."""

    def __init__(self, running: Running, times: Path | None) -> None:
        """``times``: the file to which it tells the times of decisions; None where it does not."""
        self.running = running
        self.times = times

    @property
    def cpu(self) -> float:
        """Seconds of CPU of all its threads so far."""
        return cpu_of(self.running.pid)

    @property
    def memory(self) -> float:
        """MiB resident."""
        return memory_of(self.running.pid)

    def metric(self, name: str) -> float:
        """The sum over the series of a metric."""
        with urllib.request.urlopen(f"{self.running.internal}/metrics", timeout=60) as answer:  # noqa: S310 - our own
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[{{ ]", line))

    def held(self) -> dict[str, int]:
        """Blocks that it holds of each worker."""
        url, headers = f"{self.running.internal}/admin/v1/workers", {"authorization": "Bearer admin"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - our own address
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            return {one["name"]: one["heldBlocks"] for one in json.loads(answer.read())["items"]}

    async def decisions(self) -> list[float]:
        """Milliseconds of each decision since the last call."""
        if self.times is None:
            return [0.0, 0.0]
        self.times.unlink(missing_ok=True)
        os.kill(self.running.pid, signal.SIGUSR2)
        for _ in range(1200):
            if self.times.exists():
                return [float(each) for each in json.loads(self.times.read_text())]
            await asyncio.sleep(0.05)
        raise RuntimeError("the replica does not tell its decisions")

    async def warm(self) -> float:
        """Seconds until the agents of all workers have reported to it."""
        began = time.monotonic()
        while status_of(f"{self.running.internal}/readyz") != 200:
            if time.monotonic() - began > WARM_SECONDS:
                raise RuntimeError("not all agents reported in time")
            await asyncio.sleep(0.1)
        return time.monotonic() - began


class Agents:
    """The processes of fake agents."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def tell(self, command: str) -> list[dict[str, Any]]:
        """Tell all of them; their answers."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(command.encode() + b"\n")
        return [json.loads(await _line(process)) for process in self._processes]

    async def cpu(self) -> float:
        """Seconds of CPU so far."""
        return float(sum(each["cpu"] for each in await self.tell("cpu")))


async def _settled(replica: Replica, believed: dict[str, int]) -> dict[str, int]:
    """What a replica holds once that is what its agents believe, or nothing has made it so in SETTLED_SECONDS."""
    until = time.monotonic() + SETTLED_SECONDS
    while (held := replica.held()) != believed and time.monotonic() < until:  # noqa: ASYNC110 - another process
        await asyncio.sleep(0.1)
    return held


async def _line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    if line := await process.stdout.readline():
        return line
    raise RuntimeError("a process of fake agents has ended")


@dataclass
class Scale:
    """One row's fleet: starts it, measures, checks."""

    work: Work
    folder: Path
    key: FleetKey = field(default_factory=FleetKey.generate)

    def __post_init__(self) -> None:
        self._names = [f"w-{number}" for number in range(self.work.workers)]
        self._outcome = Outcome(self.work.workers, self.work.rate)

    async def run(self) -> Outcome:
        async with contextlib.AsyncExitStack() as stack:
            self._engine = (await stack.enter_async_context(engines(1)))[0]
            http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            requests = Requests(self.key, http, min(PROMPTS, self.work.workers))
            running = [stack.enter_context(self._replica(f"replica-{each}")) for each in range(self.work.replicas)]
            agents = await self._agents(stack, requests, running)
            await self._measured(running, agents, requests)
            with self._replica("joining") as joining:
                await agents.tell(f"join {joining.running.internal.replace('http', 'ws', 1)}")
                self._outcome.join = await joining.warm()
                await self._checked(joining, agents)
        return self._outcome

    async def _measured(self, replicas: list[Replica], agents: Agents, requests: Requests) -> None:
        work, first, row = self.work, replicas[0], self._outcome
        row.warm = await first.warm()
        say(f"{work.workers} agents have reported in {row.warm:.1f} s")
        await asyncio.sleep(SETTLE_SECONDS)
        row.idle = await self._cores(first, asyncio.sleep(work.seconds))
        if work.requests:
            row.quiet_ms = await requests.window(first.running, work.seconds, work.requests)
        say(f"idle: {row.idle:.3f} cores, requests {_ms(row.quiet_ms)}")
        await agents.tell("run")
        await asyncio.sleep(SETTLE_SECONDS)
        before, cpu = first.metric("cachefleet_report_frames_total"), await agents.cpu()
        if work.profile:
            os.kill(first.running.pid, signal.SIGUSR1)
        began = time.monotonic()
        row.busy = await self._cores(first, asyncio.sleep(work.seconds))
        if work.profile:
            os.kill(first.running.pid, signal.SIGUSR1)
        spent = time.monotonic() - began
        row.frames = (first.metric("cachefleet_report_frames_total") - before) / spent
        row.agents = (await agents.cpu() - cpu) / spent
        say(f"changing: {row.busy:.3f} cores, {row.frames:.0f} frames/s, agents {row.agents:.2f} cores")
        if work.requests:
            await self._ask(requests, first)
        row.memory = first.memory
        row.problems += sorted(requests.strayed)[:3]
        for replica in replicas:
            await self._checked(replica, agents)

    async def _ask(self, requests: Requests, replica: Replica) -> None:
        row, work = self._outcome, self.work
        await replica.decisions()
        began, cpu = time.monotonic(), replica.cpu
        row.busy_ms = await requests.window(replica.running, work.seconds, work.requests)
        row.asked = (replica.cpu - cpu) / (time.monotonic() - began)
        times = await replica.decisions()
        row.decision_ms = (percentile(times, 50), percentile(times, 99))
        say(f"with {work.requests:g} requests/s: {row.asked:.3f} cores, {_ms(row.busy_ms)}")
        say(f"decisions: {_ms(row.decision_ms)}")

    async def _cores(self, replica: Replica, waiting: Any) -> float:
        """Cores of CPU that a replica takes meanwhile."""
        began, cpu = time.monotonic(), replica.cpu
        await waiting
        return (replica.cpu - cpu) / (time.monotonic() - began)

    async def _checked(self, replica: Replica, agents: Agents) -> None:
        """Whether it holds what the agents believe to hold, once nothing changes any more."""
        told = await agents.tell("rest")
        believed = {name: held for each in told for name, held in each["held"].items()}
        self._outcome.problems += [why for each in told for why in each["lost"]][:3]
        if (held := await _settled(replica, believed)) != believed:
            wrong = [name for name in believed if held.get(name) != believed[name]]
            self._outcome.problems.append(f"{len(wrong)} workers' blocks are not those of their agents")
        self._outcome.resyncs += replica.metric("cachefleet_report_resyncs_total")
        if diverged := replica.metric("cachefleet_report_divergence_total"):
            self._outcome.problems.append(f"{diverged:g} digests differed")

    @contextlib.contextmanager
    def _replica(self, name: str) -> Iterator[Replica]:
        folder = self.folder / name
        folder.mkdir()
        engine = Engine(
            url=self._engine,
            events="",
            replay="",
            model=MODEL,
            block_size=CONTRACT.block_size,
            max_model_len=16_384,
            resource="nvidia.com/gpu",
        )
        times = folder / "decisions.json"
        command = ("-m", "bench.scale_requests", str(times))
        if self.work.profile:
            command = ("-m", "bench.profile_sampler", str(self.work.profile))
        with plane(
            folder,
            self.key,
            dict.fromkeys(self._names, engine),
            core=os.sched_getaffinity(0),
            command=command,
            until="listening",
            startup_seconds=str(WARM_SECONDS),
        ) as running:
            yield Replica(running, None if self.work.profile else times)

    async def _agents(self, stack: contextlib.AsyncExitStack, requests: Requests, replicas: list[Replica]) -> Agents:
        shares = [self._names[each :: self.work.processes] for each in range(self.work.processes)]
        processes = [await self._process(stack, names, requests, replicas) for names in shares if names]
        return Agents(processes)

    async def _process(
        self, stack: contextlib.AsyncExitStack, names: list[str], requests: Requests, replicas: list[Replica]
    ) -> asyncio.subprocess.Process:
        options = ScaleOptions(
            pool=POOL,
            workers=tuple(names),
            tokens=tuple(self.key.report_token(POOL, name) for name in names),
            pinned=tuple(requests.keys[int(name.rpartition("-")[2]) % len(requests.keys)] for name in names),
            contract=CONTRACT,
            control_planes=tuple(each.running.internal.replace("http", "ws", 1) for each in replicas),
            held=self.work.held,
            rate=self.work.rate,
        )
        pipe = asyncio.subprocess.PIPE
        limit = 64 * 1024 * 1024
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.scale_agents"), stdin=pipe, stdout=pipe, limit=limit
        )
        stack.push_async_callback(_end, process)
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(options) + b"\n")
        return process


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


def say(text: str) -> None:
    print(f"  {text}", flush=True)


def _ms(times: tuple[float, float]) -> str:
    return f"{times[0]:.3g} / {times[1]:.3g} ms"


HEAD: Final = (
    "| workers | blocks/s each | idle cores | changing | and requests | MiB | frames/s | requests p50 / p99, quiet |"
    " changing | decisions p50 / p99 | resyncs | joins in | agents' cores |"
)


def table(rows: list[Outcome]) -> str:
    """As Markdown."""
    lines = [
        f"| {row.workers:,} | {row.rate:g} | {row.idle:.3f} | {row.busy:.3f} | {row.asked:.3f} | {row.memory:.0f} |"
        f" {row.frames:,.0f} | {_ms(row.quiet_ms)} | {_ms(row.busy_ms)} |"
        f" {_ms(row.decision_ms)} | {row.resyncs:.0f} | {row.join:.1f} s |"
        f" {row.agents:.2f} |"
        for row in rows
    ]
    return "\n".join([HEAD, "|" + "---|" * (HEAD.count("|") - 1), *lines])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="10,100,1000", help="numbers of workers (default %(default)s)")
    parser.add_argument("--rate", type=float, default=440, help="blocks stored, and removed, a second by each (440)")
    parser.add_argument("--held", type=int, default=20_000, help="blocks held by each (20000)")
    parser.add_argument("--seconds", type=float, default=20, help="of each window (20)")
    parser.add_argument("--requests", type=float, default=100, help="asked a second; 0 for none (100)")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2, help="of fake agents (2)")
    parser.add_argument("--profile", type=Path, help="samples of the replica's main thread go to this file")
    return parser.parse_args()


def main() -> int:
    options = _options()
    rows = []
    for workers in map(int, options.workers.split(",")):
        print(f"{workers} workers", flush=True)
        work = Work(
            workers=workers,
            rate=options.rate,
            held=options.held,
            seconds=options.seconds,
            requests=options.requests,
            replicas=options.replicas,
            processes=min(options.processes, workers),
            profile=options.profile,
        )
        with tempfile.TemporaryDirectory() as folder:
            rows.append(uvloop.run(Scale(work, Path(folder)).run()))
        for problem in rows[-1].problems:
            say(f"WRONG: {problem}")
    print(table(rows))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
