"""What the gateway does for a request in counts that a machine's load moves little: calls, bytecodes, instructions.

    python -m bench.gateway --counts calls         # of Python, and bytecodes; a minute
    python -m bench.gateway --counts instructions  # of the processor; some minutes, and valgrind has to be installed

On the approximate rung, prompts of 2 KiB, engines that answer from memory, one request after the other: a whole answer,
a stream, and turns of one conversation that says its name. Requests that come before those that are counted fill what
is remembered.

Calls and bytecodes are those of the main thread, in callbacks of the event loop that each request has and no timer:
what is done by time, as writing decisions, is more for a request the slower these come. Instructions are those of user
space, of the main thread, of the native transport's and of the store's; what all take in a second without requests is
told beside, and taken off, but not what is done by time because of requests: so they repeat within some hundredths.

Rows go to bench/results/gateway-calls.json and gateway-instructions.json, calls and bytecodes by function to
gateway-functions.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Final, Protocol

import msgspec
import uvloop

from bench.counted_process import BYTECODES, CALLS, INSTRUCTIONS
from bench.parts import cores
from bench.proxies_client import Caller, Shape
from bench.proxies_engine import MODEL, engines
from bench.proxies_sides import ours
from bench.rows import Row, reported, row

RESULTS: Final = Path(__file__).parent / "results"
WORKERS: Final = 4
CHARACTERS: Final = 2048
WARM: Final = 40
SETTLING: Final = 5
"""Requests of a kind before those that are counted: first all kinds', then of each connection."""
START_SECONDS: Final = 3600.0
"""Valgrind takes some fifty times as long as the processor."""
TOLD_SECONDS: Final = 60.0
IDLE_SECONDS: Final = 5.0
MAIN: Final = "main thread"
NATIVE: Final = "native threads"
STORE: Final = "store's thread"
IDLE: Final = "a second without requests"
_SESSION: Final = "x-cachefleet-session"
_THREAD: Final = re.compile(r"^thread: (\d+)$", re.MULTILINE)
_TOTAL: Final = re.compile(r"^(?:summary|totals): (\d+)$", re.MULTILINE)

Counts = Mapping[str, float]
Told = Mapping[str, Counts]
"""By callback of the event loop and by function, or by thread."""
OF_EACH: Final = 0.9
"""Times that a callback which each request has is there for a request, at least: a counted one may be left over."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request; ``talk``: each goes on with the conversation of the one before."""

    name: str
    stream: bool = False
    talk: bool = False

    def bodies(self) -> Iterator[bytes]:
        """Never the same twice."""
        shape = Shape(CHARACTERS, stream=self.stream)
        return map(msgspec.json.encode, _turns()) if self.talk else shape.bodies()

    def headers(self, number: int) -> tuple[tuple[str, str], ...]:
        """Further headers of a connection's requests."""
        return ((_SESSION, f"talk-{number}"),) if self.talk else ()


KINDS: Final = (Kind("chat, whole"), Kind("chat, stream", stream=True), Kind("chat, continued", talk=True))


def _turns() -> Iterator[dict[str, object]]:
    """Bodies of one conversation, each with the answer before it and a new question."""
    messages = [{"role": "system", "content": ("a prompt of a system, " * CHARACTERS)[:CHARACTERS]}]
    for number in count():
        messages.append({"role": "user", "content": f"question {number}"})
        yield {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, "stream": False}
        messages.append({"role": "assistant", "content": "word " * 8})


class Counting(Protocol):
    """Counts what the control plane of ``pid`` does."""

    kind: str
    """As ``bench.counted_process`` has it."""

    async def begin(self, pid: int) -> None:
        """Count from now on."""

    async def told(self) -> Told:
        """What was counted since the last time."""


class Calls:
    """Calls of Python, by function."""

    kind = CALLS

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pid = 0

    async def begin(self, pid: int) -> None:
        """Count from now on."""
        self._pid = pid
        await self.told()

    async def told(self) -> Told:
        """What was counted since the last time. TimeoutError."""
        self._file.unlink(missing_ok=True)
        os.kill(self._pid, signal.SIGUSR1)
        async with asyncio.timeout(TOLD_SECONDS):
            while not self._file.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
        told: Told = json.loads(self._file.read_text())
        return told


class Instructions:
    """Instructions, by thread: MAIN, NATIVE, STORE."""

    kind = INSTRUCTIONS

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pid = self._dumps = 0

    async def begin(self, pid: int) -> None:
        """Count from now on; until then the process runs faster. RuntimeError."""
        self._pid = pid
        await self._ask("--instr=on")

    async def told(self) -> Told:
        """What was counted since the last time. RuntimeError."""
        await self._ask("--dump")
        self._dumps += 1
        found = {name: Counter({name: 0}) for name in (MAIN, NATIVE, STORE)}
        for file in self._file.parent.glob(f"{self._file.name}.{self._dumps}-*"):
            thread, instructions = dump(file.read_text())
            found[thread][thread] += instructions
        return found

    async def _ask(self, what: str) -> None:
        command = ["callgrind_control", what, str(self._pid)]
        asked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if asked.returncode or "OK" not in asked.stdout:
            raise RuntimeError(f"callgrind_control {what}: {asked.stdout[-500:]}{asked.stderr[-500:]}")


_COUNTERS: Final[Mapping[str, Callable[[Path], Counting]]] = {CALLS: Calls, INSTRUCTIONS: Instructions}
COUNTED: Final = tuple(_COUNTERS)


def dump(text: str) -> tuple[str, int]:
    """Which thread a file of callgrind's is of, and its instructions. ValueError."""
    thread, total = _THREAD.search(text), _TOTAL.search(text)
    if thread is None or total is None:
        raise ValueError("no dump of a thread")
    name = MAIN if thread[1] == "1" else STORE if "libsqlite3" in text else NATIVE
    return name, int(total[1])


@dataclass(slots=True)
class Counted:
    """What is counted of a control plane at ``url``, less what its timers take meanwhile."""

    url: str
    counting: Counting
    idle: Told = field(default_factory=dict)
    """Of a second without requests."""

    async def learn_idle(self) -> None:
        """Count what timers take."""
        await self.counting.told()
        began = time.perf_counter()
        await asyncio.sleep(IDLE_SECONDS)
        told = await self.counting.told()
        self.idle = by(time.perf_counter() - began, told)

    async def requests(self, kind: Kind, many: int) -> Counts:
        """Ask SETTLING requests of a kind and then so many; what these take, by request. ProxyError."""
        caller, bodies = await Caller.to(self.url, kind.headers(1)), kind.bodies()
        await _asked(caller, bodies, SETTLING)
        await self.counting.told()
        seconds = await _asked(caller, bodies, many)
        told = await self.counting.told()
        caller.close()
        return of_requests(by(many, told), self.idle, seconds / many)


def by(many: float, told: Told) -> Told:
    """Counts divided by a number."""
    return {name: {each: count / many for each, count in counts.items()} for name, counts in told.items()}


def of_requests(told: Told, idle: Told, seconds: float) -> Counts:
    """What a request takes that is over after some seconds, of what was counted and what a second without takes."""
    if MAIN in told:
        return {name: counts[name] - seconds * idle[name][name] for name, counts in told.items()}
    found: dict[str, float] = {}
    for callback, counts in told.items():
        if callback not in idle and counts.get(callback, 0) >= OF_EACH:
            found |= {name: found.get(name, 0) + count for name, count in counts.items()}
    return found


async def _asked(caller: Caller, bodies: Iterator[bytes], many: int) -> float:
    """Seconds that so many requests take. ProxyError."""
    began = time.perf_counter()
    for body in islice(bodies, many):
        await caller.ask(body)
    return time.perf_counter() - began


async def measure(folder: Path, counting: Counting, many: int) -> dict[str, Counts]:
    """What a request of each kind takes, by its name; and under IDLE what a second without requests takes."""
    async with engines(WORKERS, token_seconds=0.0) as urls:
        with contextlib.ExitStack() as stack:
            command = ("-m", "bench.counted_process", counting.kind, str(folder / counting.kind))
            start = ours(folder, urls, core=cores(2)[1], command=command, patience=START_SECONDS)
            proxy = await asyncio.to_thread(stack.enter_context, start)
            for kind in KINDS:
                await _asked(await Caller.to(proxy.url, kind.headers(0)), kind.bodies(), WARM)
            await counting.begin(proxy.pid)
            counted = Counted(proxy.url, counting)
            await counted.learn_idle()
            found = {kind.name: await counted.requests(kind, many) for kind in KINDS}
            idle = counted.idle
    return found | ({IDLE: {name: counts[name] for name, counts in idle.items()}} if MAIN in idle else {})


def rows(found: Mapping[str, Counts]) -> Iterator[Row]:
    """Thousands of instructions of each kind and thread, or all calls of each kind."""
    for name, counts in found.items():
        if MAIN in counts:
            yield from (
                row(f"{name}: {thread}", each / 1000, unit="1000 instructions") for thread, each in counts.items()
            )
        else:
            bytecodes = sum(each for function, each in counts.items() if function.startswith(BYTECODES))
            yield row(name, sum(counts.values()) - bytecodes, unit="calls")
            yield row(name, bytecodes, unit="bytecodes")


def run(kind: str, *, requests: int) -> None:
    """Measure, print, and write to RESULTS."""
    with tempfile.TemporaryDirectory(prefix="cachefleet-bench-") as name:
        counting = _COUNTERS[kind](Path(name) / kind)
        found = uvloop.run(measure(Path(name), counting, requests))
    reported(rows(found), RESULTS / f"gateway-{kind}.json")
    if kind == CALLS:
        (RESULTS / "gateway-functions.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
