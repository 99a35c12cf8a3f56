"""What a proxy needs for many open streams: its memory before and with them, and whether each goes on.

Each proxy by itself, freshly started, before engines that send an event of each stream every TOKEN_SECONDS. Streams are
opened AT_ONCE at a time, so that nobody's backlog of connections overflows, and watched for WATCH_SECONDS once all have
begun: the longest pause between two events of any stream says whether one starves. Streams that a proxy refuses, or
ends, are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol

from bench.bars import Bar
from bench.proxies_client import Caller, Heard, ProxyError, Shape
from bench.proxies_engine import engines
from bench.proxies_sides import Proxy
from bench.rows import Row, row

STREAMS: Final = 5000
AT_ONCE: Final = 64
TOKEN_SECONDS: Final = 2.0
WATCH_SECONDS: Final = 6.0
OPEN_SECONDS: Final = 120.0
TOKENS: Final = 1000
"""Of each answer: more than anybody waits for."""
WORKERS: Final = 4
MEMORY_MIB: Final = 200.0
PAUSE_MS: Final = 3 * TOKEN_SECONDS * 1000
"""The longest pause of a stream that counts as going on."""


class Start(Protocol):
    """Starts a proxy before these workers."""

    def __call__(self, *, workers: Sequence[str]) -> AbstractContextManager[Proxy]: ...


class Listener(Caller):
    """A connection that hears one stream, and notes the longest pause between two pieces of it."""

    def __init__(self, host: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(host, headers)
        self.begun = asyncio.Event()
        self.watched_from = 0.0
        self.longest = 0.0
        self.ended = False
        self._last = 0.0

    def on_body(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.watched_from:
            self.longest = max(self.longest, now - max(self._last, self.watched_from))
        self._last = now
        if not self.begun.is_set():
            self._heard.body.append(data)
            self.begun.set()

    def watch(self) -> None:
        """Look at pauses from now on."""
        self.watched_from, self.longest = time.perf_counter(), 0.0

    @property
    def pause(self) -> float:
        """The longest one, in seconds; that which lasts until now among them."""
        return max(self.longest, time.perf_counter() - max(self._last, self.watched_from))

    async def listen(self, body: bytes) -> None:
        """Ask, and return once the stream has begun. ProxyError."""
        asked = asyncio.ensure_future(self.ask(body))
        asked.add_done_callback(self._over)
        begun = asyncio.ensure_future(self.begun.wait())
        await asyncio.wait({asked, begun}, timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if asked.done():
            asked.result()
        if not self.begun.is_set():
            raise ProxyError("a stream did not begin")

    def _over(self, asked: asyncio.Future[Heard]) -> None:
        self.ended = True
        if not asked.cancelled():
            asked.exception()  # closed at the end, by us


def resident_mib(pid: int) -> float:
    """Memory of a process that is in RAM."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


async def memory_rows(name: str, start: Start, *, streams: int, judged: bool) -> list[Row]:
    """Of one proxy."""
    async with engines(WORKERS, token_seconds=TOKEN_SECONDS) as urls:
        context = start(workers=urls)
        proxy = await asyncio.to_thread(context.__enter__)
        try:
            async with _opened(proxy, 4):  # what is loaded with the first request is no stream's
                before = resident_mib(proxy.pid)
            async with _opened(proxy, streams) as listeners:
                for one in listeners:
                    one.watch()
                await asyncio.sleep(WATCH_SECONDS)
                going = [one for one in listeners if not one.ended]
                pause, held = max((one.pause for one in going), default=0.0), resident_mib(proxy.pid)
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)
    told = f"{name}: {streams} open streams"
    found = [
        row(f"{told}, memory", held, unit="MiB"),
        row(f"{told}, memory without them", before, unit="MiB"),
        row(f"{told}, refused or ended", streams - len(going), unit="streams"),
        row(f"{told}, longest pause of one", 1000 * pause),
    ]
    if judged:
        for each, limit in ((found[0], MEMORY_MIB), (found[2], 0), (found[3], PAUSE_MS)):
            bar = Bar("proxies", "", "ours", limit)
            each |= {"bar": str(bar), "kept": bar.holds(each["ours"])}
    return found


@asynccontextmanager
async def _opened(proxy: Proxy, count: int) -> AsyncIterator[list[Listener]]:
    """Streams that have begun, of so many asked for."""
    bodies = Shape(2048, stream=True, tokens=TOKENS).bodies()
    room, listeners = asyncio.Semaphore(AT_ONCE), list[Listener]()

    async def begin(body: bytes) -> None:
        async with room:
            listener = await Listener.to(proxy.url)
            with contextlib.suppress(ProxyError):
                await listener.listen(body)
                listeners.append(listener)
                return
            listener.close()

    try:
        await asyncio.gather(*map(begin, itertools.islice(bodies, count)))
        yield listeners
    finally:
        for one in listeners:
            one.close()
