"""Where the gateway's CPU goes, by part of a request: whole, streamed, and for each event of a stream.

    python -m bench.gateway --profile       # about a minute and a half

The approximate rung, prompts of 2 KiB, CONNECTIONS without pause, engines that answer from memory: as in bench.proxies.
What a request takes in all is the CPU, user and system, of all threads while it was asked, by the kernel's own count.
That of the main thread is divided by samples (``profile_sampler``); the native transport's threads are a row, and so
are the others, which write decisions. So the rows add up to the whole, and what is uncertain is a part's share: by the
number of samples, two standard errors are shown. Besides, what native code did is told of whom it was called by, and
what the event loop does between callbacks is a row. The sampler itself takes less than a hundredth. An event's cost is
what longer streams take more, by event.

Last, how many requests a second that makes on some cores, computed of these figures: Python's threads take turns (its
lock), so together they have one core; CACHEFLEET_GATEWAY_THREADS native ones have one each, as far as there are cores.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import uvloop

from bench.parts import cores
from bench.profile_parts import NATIVE, PARTS, THREADS
from bench.proxies_client import Shape, load
from bench.proxies_engine import engines
from bench.proxies_sides import Proxy, ours

RESULTS: Final = Path(__file__).parent / "results" / "gateway-profile.json"
WORKERS: Final = 4
CONNECTIONS: Final = 16
WINDOW_SECONDS: Final = 2.0
BODIES: Final = 640
LONG: Final = 64
WHOLE, SHORT_STREAM, LONG_STREAM = SHAPES = (
    Shape(2048, stream=False),
    Shape(2048, stream=True),
    Shape(2048, stream=True, tokens=LONG),
)
TOLD_SECONDS: Final = 10.0
CORES: Final = (1, 2, 4)
NATIVE_NAME: Final = "transport-"
"""How the names of the native transport's threads begin."""
FUNCTIONS: Final = 4
"""Named of each part."""


@dataclass(slots=True)
class Profile:
    """What was counted of one shape: requests, nanoseconds of the main thread, the others and native ones, samples."""

    requests: int = 0
    main: int = 0
    others: int = 0
    native: int = 0
    parts: Counter[str] = field(default_factory=Counter)
    functions: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> float:
        """Microseconds of a request."""
        return (self.main + self.others + self.native) / 1000 / max(1, self.requests)

    def per_second(self, cores: int) -> float:
        """Requests a second on so many cores, with a native thread for each but one."""
        python, native = (each / 1e9 / max(1, self.requests) for each in (self.main + self.others, self.native))
        return min(cores / (python + native), 1 / python, max(1, cores - 1) / native if native else math.inf)

    def microseconds(self, part: str) -> float:
        """Of a request, in one part."""
        if part in {THREADS, NATIVE}:
            return (self.others if part == THREADS else self.native) / 1000 / max(1, self.requests)
        return self.main / 1000 / max(1, self.requests) * self._share(part)

    def uncertain(self, part: str) -> float:
        """Two standard errors of that."""
        share, samples = self._share(part), max(1, self.parts.total())
        return (
            0.0
            if part in {THREADS, NATIVE}
            else 2 * self.main / 1000 / max(1, self.requests) * (share * (1 - share) / samples) ** 0.5
        )

    def _share(self, part: str) -> float:
        return self.parts[part] / max(1, self.parts.total())


def nanoseconds(pid: int) -> tuple[int, int, int]:
    """What the main thread has computed, all others, and the native transport's."""
    spent = [0, 0, 0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # one that has ended
            kind = 0 if task.name == str(pid) else 2 if (task / "comm").read_text().startswith(NATIVE_NAME) else 1
            spent[kind] += int((task / "schedstat").read_text().split()[0])
    main, others, native = spent
    return main, others, native


class Sampled:
    """A control plane under ``profile_sampler``, whose counts come to ``file``."""

    def __init__(self, proxy: Proxy, file: Path) -> None:
        self._proxy = proxy
        self._file = file

    async def window(self, bodies: Sequence[bytes], profile: Profile) -> None:
        """Ask without pause, and add what that took."""
        await self.told()
        before = nanoseconds(self._proxy.pid)
        answered, _ = await load(self._proxy.url, bodies, connections=CONNECTIONS, seconds=WINDOW_SECONDS)
        after = nanoseconds(self._proxy.pid)
        counted = await self.told()
        profile.requests += len(answered)
        profile.main += after[0] - before[0]
        profile.others += after[1] - before[1]
        profile.native += after[2] - before[2]
        profile.parts.update(counted["parts"])
        profile.functions.update(counted["functions"])

    async def told(self) -> Mapping[str, Mapping[str, int]]:
        """What was counted since the last time. TimeoutError."""
        self._file.unlink(missing_ok=True)
        os.kill(self._proxy.pid, signal.SIGUSR1)
        async with asyncio.timeout(TOLD_SECONDS):
            while not self._file.exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
        told: Mapping[str, Mapping[str, int]] = json.loads(self._file.read_text())
        return told


async def measure(folder: Path, *, rounds: int) -> list[Profile]:
    """The profile of each of SHAPES, in turns; the first turn is not counted."""
    file, (_, core) = folder / "samples.json", cores(2)
    profiles = [Profile() for _ in SHAPES]
    bodies = [shape.bodies() for shape in SHAPES]
    command = ("-m", "bench.profile_sampler", str(file))
    async with engines(WORKERS) as urls:
        with contextlib.ExitStack() as stack:
            start = ours(folder, urls, core=core, command=command)
            sampled = Sampled(await asyncio.to_thread(stack.enter_context, start), file)
            for number in range(rounds + 1):
                for fresh, profile in zip(bodies, profiles, strict=True):
                    await sampled.window(list(itertools.islice(fresh, BODIES)), profile if number else Profile())
    return profiles


def rows(profiles: Sequence[Profile]) -> Iterator[dict[str, Any]]:
    """A row for each part, and the sum: microseconds of each shape, how uncertain, and of an event."""
    for part in (*PARTS, "sum"):
        told = [one.total if part == "sum" else one.microseconds(part) for one in profiles]
        _, short, long = told
        yield {
            "part": part,
            **{shape.name: us for shape, us in zip(SHAPES, told, strict=True)},
            "uncertain": [0.0 if part == "sum" else one.uncertain(part) for one in profiles],
            "event": (long - short) / (LONG_STREAM.tokens - SHORT_STREAM.tokens),
        }


def show(profiles: Sequence[Profile], *, functions: bool) -> None:
    """Print the table; with ``functions`` also where most of each part's time goes."""
    print(
        f"{'microseconds of CPU of a request':<36}"
        + "".join(f"{shape.name:>22}" for shape in SHAPES)
        + f"{'each event':>14}"
    )
    for row in rows(profiles):
        cells = [f"{row[shape.name]:.1f}" for shape in SHAPES]
        spread = [f" ±{us:>4.1f}" if us else " " * 6 for us in row["uncertain"]]
        print(
            f"{row['part']:<36}"
            + "".join(f"{one:>16}{two}" for one, two in zip(cells, spread, strict=True))
            + f"{row['event']:>14.2f}"
        )
    print()
    for count in CORES:
        told = f"requests a second on {count} core{'s' if count > 1 else ''}, computed"
        print(f"{told:<36}" + "".join(f"{one.per_second(count):>16.0f}" + " " * 6 for one in profiles))
    if functions:
        for shape, profile in zip(SHAPES, profiles, strict=True):
            _show_functions(shape, profile)


def _show_functions(shape: Shape, profile: Profile) -> None:
    print(f"\n{shape.name}: where most of it goes, by innermost function")
    each = profile.main / 1000 / max(1, profile.requests) / max(1, profile.parts.total())
    for part in PARTS:
        own = Counter(
            {name.partition("\t")[2]: n for name, n in profile.functions.items() if name.startswith(f"{part}\t")}
        )
        for name, count in own.most_common(FUNCTIONS):
            print(f"  {part:<34}{count * each:>8.1f}  {name}")


def run(*, rounds: int, functions: bool = False) -> None:
    """Measure, print, and write to RESULTS."""
    mine, _ = cores(2)
    os.sched_setaffinity(0, mine)
    with tempfile.TemporaryDirectory() as name:
        profiles = uvloop.run(measure(Path(name), rounds=rounds))
    show(profiles, functions=functions)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(list(rows(profiles)), indent=1) + "\n")
    print(f"written to {os.path.relpath(RESULTS)}")
