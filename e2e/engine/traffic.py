"""Conversations sent through a gateway at once, each answer checked, every failure kept with what is known of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

SYSTEM = " ".join(f"Rule {n}: answer in order, name the file, keep the words short." for n in range(24))
MAX_TOKENS = 24
TURNS = 4


@dataclass(slots=True)
class Sent:
    """One request and how it ended; ``error`` is empty where it was answered whole."""

    stream: bool
    began: float
    worker: str = ""
    first_byte: float | None = None
    ended: float = 0.0
    status: int = 0
    error: str = ""


@dataclass(slots=True)
class Traffic:
    """``clients`` conversations at a time against one gateway until ``stop``; half of the requests are streams."""

    gateway: str
    model: str
    clients: int = 8
    sent: list[Sent] = field(default_factory=list)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            await asyncio.gather(*(self._talk(session, client) for client in range(self.clients)))

    def stop(self) -> None:
        self._stopped.set()

    @property
    def failed(self) -> list[Sent]:
        return [one for one in self.sent if one.error]

    @property
    def answered(self) -> list[Sent]:
        return [one for one in self.sent if one.ended and not one.error]

    async def _talk(self, session: aiohttp.ClientSession, client: int) -> None:
        for number, messages in enumerate(_turns(client)):
            if self._stopped.is_set():
                return
            one = Sent(stream=(client + number) % 2 == 0, began=time.monotonic())
            self.sent.append(one)
            await self._send(session, one, messages)

    async def _send(self, session: aiohttp.ClientSession, one: Sent, messages: list[dict[str, str]]) -> None:
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": MAX_TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": one.stream,
        }
        try:
            async with session.post(f"{self.gateway}/v1/chat/completions", json=body) as answer:
                one.status, one.worker = answer.status, answer.headers.get("x-cachefleet-worker", "")
                one.error = await _read(answer, one)
        except aiohttp.ClientError as error:
            one.error = repr(error)
        one.ended = time.monotonic()


async def _read(answer: aiohttp.ClientResponse, one: Sent) -> str:
    whole = b""
    async for data, _ in answer.content.iter_chunks():
        one.first_byte = one.first_byte or time.monotonic()
        whole += data
    if answer.status != 200:
        return f"status {answer.status}: {whole[:200]!r}"
    if one.stream:
        return "" if whole.endswith(b"data: [DONE]\n\n") and b'"error"' not in whole else f"cut short: {whole[-200:]!r}"
    return "" if json.loads(whole)["choices"][0]["finish_reason"] == "length" else f"odd answer: {whole[:200]!r}"


def _turns(client: int) -> Iterator[list[dict[str, str]]]:
    """Endless conversations of one client; the system prompt is everyone's."""
    conversation = 0
    while True:
        messages = [{"role": "system", "content": SYSTEM}]
        for turn in range(TURNS):
            text = f"Client {client}, conversation {conversation}, turn {turn}: " + "please look again. " * 8
            messages = [*messages, {"role": "user", "content": text}]
            yield messages
            messages = [*messages, {"role": "assistant", "content": f"Looked at part {turn}, nothing found."}]
        conversation += 1
