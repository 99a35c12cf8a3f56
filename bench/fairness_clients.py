"""The tenants of the flood on a real engine: one that asks now and then, and a noisy one, before one gateway."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

TENANT_HEADER: Final = "x-gateway-inference-fairness-id"
TOKEN_IDS: Final = range(300, 1500)
PROMPT_TOKENS: Final = 1500
OUTPUTS: Final = 8
PAUSE_SECONDS: Final = 0.1
"""Of the quiet tenant after each answer, at most; 0 at least."""
LEAST: Final = 20
"""Requests of the quiet tenant in each phase, however long they take."""
SETTLE_SECONDS: Final = 1.5
"""Before a phase counts, while the noisy tenant asks already."""


class UnsoundError(Exception):
    """An answer was not what it has to be; nothing is reported."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the noisy tenant asks for: so many requests under way at a time, or so many a second at random moments."""

    at_a_time: int = 0
    a_second: float = 0.0


@dataclass(slots=True)
class Phase:
    """One demand of the noisy tenant for some seconds: the quiet one's answers, and how many all tenants had."""

    seconds: list[float] = field(default_factory=list)
    """To the quiet tenant's whole answers."""
    firsts: list[float] = field(default_factory=list)
    """To their first tokens; of whole answers the same."""
    answers: int = 0
    noisy: int = 0
    """Of all answers, those to the noisy tenant."""
    took: float = 0.0

    @property
    def rate(self) -> float:
        """Answers of all tenants a second."""
        return self.answers / self.took

    @property
    def noisy_rate(self) -> float:
        """The noisy tenant's answers a second."""
        return self.noisy / self.took


class Clients:
    """Both tenants before one gateway."""

    def __init__(self, gateway: str, session: aiohttp.ClientSession, *, stream: bool, pause: float) -> None:
        """``pause``: the quiet tenant's after each answer, in seconds at most."""
        self._url = f"{gateway}/v1/completions"
        self._session = session
        self._stream = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        self._chance = random.Random(1)
        self._pause = pause

    async def check(self) -> None:
        """UnsoundError where tenants are not given the same answer."""
        prompt = self._prompt()
        texts = {(await self._answer(tenant, prompt))[1] for tenant in ("quiet", "noisy", "quiet")}
        if len(texts) != 1:
            raise UnsoundError(f"one prompt has {len(texts)} greedy answers")

    async def phase(self, demand: Demand, *, seconds: float) -> Phase:
        """Ask for so long, beside what the noisy tenant asks for. UnsoundError."""
        phase = Phase()
        async with self._noisy(demand, phase):
            await asyncio.sleep(SETTLE_SECONDS if demand != Demand() else 0)
            began, phase.answers, phase.noisy = time.perf_counter(), 0, 0
            while time.perf_counter() - began < seconds or len(phase.seconds) < LEAST:
                await self._ask_quiet(phase)
                await asyncio.sleep(self._chance.uniform(0, self._pause))
            phase.took = time.perf_counter() - began
        return phase

    async def _ask_quiet(self, phase: Phase) -> None:
        prompt, began = self._prompt(), time.perf_counter()
        first, _ = await self._answer("quiet", prompt)
        phase.seconds.append(time.perf_counter() - began)
        phase.firsts.append(first - began)
        phase.answers += 1

    @asynccontextmanager
    async def _noisy(self, demand: Demand, phase: Phase) -> AsyncIterator[None]:
        """Have the noisy tenant ask meanwhile. UnsoundError where one of its requests failed."""
        tasks = [asyncio.create_task(self._again(phase)) for _ in range(demand.at_a_time)]
        if demand.a_second:
            tasks.append(asyncio.create_task(self._at_random(demand.a_second, phase)))
        try:
            yield
        finally:
            await _ended(tasks)

    async def _again(self, phase: Phase) -> None:
        while True:
            await self._ask_noisy(phase)

    async def _at_random(self, rate: float, phase: Phase) -> None:
        """Requests at a Poisson process's moments, whatever became of those before; all end with it."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._ask_noisy(phase))
                await asyncio.sleep(self._chance.expovariate(rate))

    async def _ask_noisy(self, phase: Phase) -> None:
        await self._answer("noisy", self._prompt())
        phase.answers += 1
        phase.noisy += 1

    async def _answer(self, tenant: str, prompt: list[int]) -> tuple[float, str]:
        """When its first token came, of the clock of ``time.perf_counter``, and its text. UnsoundError."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUTS, "ignore_eos": True, "temperature": 0}
        headers = {TENANT_HEADER: tenant}
        async with self._session.post(self._url, json=body | self._stream, headers=headers) as answer:
            if self._stream and answer.status == 200:
                event, first = await answer.content.readline(), time.perf_counter()
                said = _whole((event + await answer.read()).decode())
            else:
                said, first = await answer.json(), time.perf_counter()
        usage = said.get("usage", {})
        if answer.status != 200 or (usage["prompt_tokens"], usage["completion_tokens"]) != (PROMPT_TOKENS, OUTPUTS):
            raise UnsoundError(f"{tenant}: {answer.status} {said}")
        return first, said["choices"][0]["text"]

    def _prompt(self) -> list[int]:
        return self._chance.choices(TOKEN_IDS, k=PROMPT_TOKENS)


def _whole(stream: str) -> dict[str, Any]:
    """The answer that a stream's events tell."""
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: {")]
    text = "".join(choice["text"] for event in events for choice in event["choices"])
    return {**events[-1], "choices": [{"text": text}]}


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks that go on for ever; UnsoundError where one had failed before."""
    for task in tasks:
        task.cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(found, Exception):
            raise UnsoundError(f"the flood broke off: {found}") from found


@asynccontextmanager
async def clients(gateway: str, *, stream: bool, pause: float = PAUSE_SECONDS) -> AsyncIterator[Clients]:
    """Both tenants, checked. UnsoundError."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # a worker may close a connection as it is used again
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        given = Clients(gateway, session, stream=stream, pause=pause)
        await given.check()
        yield given
