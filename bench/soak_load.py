"""Requests sent at a rate, each answer checked, each failure named."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import aiohttp

from bench.soak_asks import KINDS, TOKENS, Kind, prompt

MAX_OPEN: Final = 256
"""Requests open at once; beyond, what is due is not sent, and counted."""
ANSWER_SECONDS: Final = 120.0
BORNE: Final = "broken by its worker's death, not resumable"
"""The one failure that is nobody's fault."""
GRACE_SECONDS: Final = 5.0
"""A worker's death may be noticed a little after it."""


class Mortal(Protocol):
    """A worker that may die."""

    def died_within(self, began: float, ended: float) -> bool:
        """Whether it was killed between two times on the monotonic clock."""


@dataclass(slots=True)
class Tally:
    """What became of requests."""

    ended: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    """By name, BORNE among them."""
    examples: dict[str, str] = field(default_factory=dict)
    """The first of each failure."""
    skipped: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def faults(self) -> int:
        """Failures that must not be."""
        return self.failures.total() - self.failures[BORNE]


@dataclass(slots=True)
class Heard:
    """One answer, as far as it came."""

    status: int = 0
    worker: str = ""
    body: bytearray = field(default_factory=bytearray)
    broken: str = ""
    """Why it did not come to its end."""


class Load:
    """Sends requests to one gateway; ``workers`` tell when they died."""

    def __init__(self, url: str, workers: Mapping[str, Mortal], *, seed: int) -> None:
        self._url = url
        self._workers = workers
        self._chance = random.Random(seed)
        self._open: set[asyncio.Task[None]] = set()
        self.tally = Tally()

    async def steadily(self, http: aiohttp.ClientSession, *, rate: float, seconds: float) -> None:
        """``rate`` requests a second, whatever becomes of those before."""
        end, due = time.monotonic() + seconds, time.monotonic()
        while due < end:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += self._chance.expovariate(rate)
            if len(self._open) >= MAX_OPEN:
                self.tally.skipped += 1
                continue
            task = asyncio.create_task(self.ask_once(http))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def finish(self) -> None:
        """Wait for what is open."""
        if self._open:
            await asyncio.wait(self._open)

    async def closely(self, http: aiohttp.ClientSession, *, connections: int, seconds: float) -> float:
        """Requests a second that so many at once come to, one after the other."""
        end, before, began = time.monotonic() + seconds, self.tally.ended, time.monotonic()

        async def turns() -> None:
            while time.monotonic() < end:
                await self.ask_once(http)

        await asyncio.gather(*(turns() for _ in range(connections)))
        return (self.tally.ended - before) / (time.monotonic() - began)

    async def ask_once(self, http: aiohttp.ClientSession) -> None:
        kind, tokens = self._chance.choice(KINDS), self._chance.choice(TOKENS)
        asked, began = kind.make(prompt(self._chance), tokens), time.monotonic()
        if kind.path == "/v1/route":
            asked["endpoint"] = "/v1/chat/completions"
        heard = await self._ask(http, kind, asked)
        ended = time.monotonic()
        self.tally.ended += 1
        self.tally.kinds[kind.name] += 1
        self.tally.seconds.append(ended - began)
        if failure := self._failure(kind, heard, tokens, began=began, ended=ended):
            self.tally.failures[failure] += 1
            tail = bytes(heard.body[-300:]).decode(errors="replace")
            self.tally.examples.setdefault(failure, f"{kind.name} on {heard.worker or 'nobody'}: {tail}")

    async def _ask(self, http: aiohttp.ClientSession, kind: Kind, asked: dict[str, object]) -> Heard:
        heard = Heard()
        try:
            async with asyncio.timeout(ANSWER_SECONDS), http.post(self._url + kind.path, json=asked) as answer:
                heard.status = answer.status
                heard.worker = answer.headers.get("x-cachefleet-worker", "")
                async for piece in answer.content.iter_any():
                    heard.body += piece
        except TimeoutError:
            heard.broken = f"not answered within {ANSWER_SECONDS:g} s"
        except aiohttp.ClientError as error:
            heard.broken = f"connection to the gateway: {type(error).__name__}"
        return heard

    def _failure(self, kind: Kind, heard: Heard, tokens: int, *, began: float, ended: float) -> str:
        """The name of what went wrong; "" for nothing."""
        if heard.broken or heard.status != 200:
            return heard.broken or f"status {heard.status}"
        fault = kind.fault(heard.body.decode(errors="replace"), tokens)
        worker = self._workers.get(heard.worker.rpartition("/")[2])
        died = worker is not None and worker.died_within(began - GRACE_SECONDS, ended)
        if fault and kind.end and not kind.resumable and died and fault in {"error event", "no end"}:
            return BORNE
        return f"{kind.name}: {fault}" if fault else ""
