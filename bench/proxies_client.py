"""A client that costs little: requests are bytes made before, answers are read by httptools."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from bench.proxies_engine import MODEL, TOKENS

CONVERSATIONS: Final = 32
WORDS: Final = "cache fleet worker prefix block token request answer engine router prompt system "
_VARYING: Final = re.compile(rb'"id":"[^"]*"|"created":\d+')


class ProxyError(RuntimeError):
    """An answer that is not what was asked for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kind of request; ``characters`` are those of its prompt, ``tokens`` those of the answer."""

    characters: int
    stream: bool
    tokens: int = TOKENS

    @property
    def name(self) -> str:
        size = f"{self.characters // 1024} KiB"
        events = "" if self.tokens == TOKENS else f" of {self.tokens}"
        return f"{size}, {'stream' if self.stream else 'whole'}{events}"

    def bodies(self) -> Iterator[bytes]:
        """Turns of conversations, never the same twice: each begins like the turn before and ends with a new question.

        Conversations differ from their first words on.
        """
        number = 0
        while True:
            talk = number % CONVERSATIONS
            text = (f"conversation {talk}: " + WORDS * (self.characters // len(WORDS) + 1))[: self.characters]
            messages = [{"role": "system", "content": text}, {"role": "user", "content": f"question {number}"}]
            shaped = {
                "model": MODEL,
                "messages": messages,
                "max_tokens": self.tokens,
                "temperature": 0,
                "stream": self.stream,
            }
            yield msgspec.json.encode(shaped)
            number += 1


@dataclass(slots=True)
class Heard:
    """One answer: its status, its body, and seconds to the first byte of the body and to the end."""

    status: int = 0
    body: list[bytes] = field(default_factory=list)
    first: float = 0.0
    whole: float = 0.0

    @property
    def text(self) -> bytes:
        """Without what varies from request to request."""
        return _VARYING.sub(b"", b"".join(self.body))


class Caller(asyncio.Protocol):
    """One connection; ``ask`` one at a time."""

    @classmethod
    async def to(cls, url: str, headers: Sequence[tuple[str, str]] = ()) -> Self:
        """Connect; ``headers`` go with each request."""
        parts = urlsplit(url)
        _, caller = await asyncio.get_running_loop().create_connection(
            lambda: cls(parts.netloc, headers), parts.hostname or "", parts.port or 80
        )
        return caller

    def __init__(self, host: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        lines = [("host", host), ("content-type", "application/json"), *headers]
        self._head = b"POST /v1/chat/completions HTTP/1.1\r\n"
        self._head += "".join(f"{name}: {value}\r\n" for name, value in lines).encode()
        self._transport: asyncio.Transport | None = None
        self._heard = Heard()
        self._began = 0.0
        self._done: asyncio.Future[Heard] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._done is not None and not self._done.done():
            self._done.set_exception(ProxyError("the connection was closed in the midst of an answer"))

    async def ask(self, body: bytes) -> Heard:
        """ProxyError where the answer is none of 200."""
        if self._transport is None:
            raise ProxyError("the connection was closed between two answers")
        self._done = asyncio.get_running_loop().create_future()
        self._heard, self._parser = Heard(), httptools.HttpResponseParser(self)
        self._began = time.perf_counter()
        self._transport.write(self._head + b"content-length: %d\r\n\r\n" % len(body) + body)
        heard = await self._done
        if heard.status != 200:
            raise ProxyError(f"answered {heard.status}: {b''.join(heard.body)[:300]!r}")
        return heard

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        if not self._heard.body:
            self._heard.first = time.perf_counter() - self._began
        self._heard.body.append(data)

    def on_message_complete(self) -> None:
        self._heard.status = self._parser.get_status_code()
        self._heard.whole = time.perf_counter() - self._began
        if self._done is not None and not self._done.done():
            self._done.set_result(self._heard)


def whole(heard: Heard) -> float:
    """Seconds to the end."""
    return heard.whole


async def load(
    url: str,
    bodies: Sequence[bytes],
    *,
    connections: int,
    seconds: float,
    pick: Callable[[Heard], float] = whole,
) -> tuple[list[float], float]:
    """What ``pick`` says of each request answered without a pause between them, and in how many seconds. ProxyError."""
    callers = [await Caller.to(url) for _ in range(connections)]
    began = time.perf_counter()
    try:
        asked = (
            _turns(caller, bodies[number::connections], began + seconds, pick) for number, caller in enumerate(callers)
        )
        heard = await asyncio.gather(*asked)
    finally:
        for caller in callers:
            caller.close()
    return [each for turns in heard for each in turns], time.perf_counter() - began


async def latencies(
    urls: Sequence[str], bodies: Sequence[bytes], *, pick: Callable[[Heard], float]
) -> list[list[float]]:
    """Seconds by address, asked in turns on one connection each; ``pick`` says which."""
    callers = [await Caller.to(url) for url in urls]
    out: list[list[float]] = [[] for _ in urls]
    for body in bodies:
        for caller, times in zip(callers, out, strict=True):
            times.append(pick(await caller.ask(body)))
    for caller in callers:
        caller.close()
    return out


async def _turns(caller: Caller, bodies: Sequence[bytes], end: float, pick: Callable[[Heard], float]) -> list[float]:
    asked: list[float] = []
    while time.perf_counter() < end:
        asked.append(pick(await caller.ask(bodies[len(asked) % len(bodies)])))
    return asked
