"""One process of fake agents: ``python -m bench.scale_agents``, with its options as JSON in the first line of stdin.

They say what agents say, over real connections with the fleet's report tokens: Hello, a snapshot, then a Delta each
FRAME_SECONDS and a State each second, and a snapshot where a Resync asks for one. Fake are the engines and the blocks
(``scale_blocks``), and frames are made beforehand, so that a thousand agents cost less than what they report to: a
Delta is sent as it lies in memory, with its number written into it. An agent that comes too late, because the machine
is busy, leaves Deltas out, as agents put what is late into one. Commands come as lines on stdin, and each is answered
with a line of JSON on stdout:

    run             blocks change from now on
    rest            they change no more; answered with what each worker believes to hold, and what was lost
    join URL        a connection to one more control plane
    cpu             seconds of CPU of this process
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.scale_blocks import Cycle, FakeBlocks, message_of
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import PATH, SUBPROTOCOL, Hello, Phase, Resync, State, decode_down, encode
from cachefleet_worker.agent.reports.flush_timer import FRAME_SECONDS

STATE_SECONDS: Final = 1.0
TICK_SECONDS: Final = 0.005
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


class ScaleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of fake agents does."""

    pool: str
    workers: tuple[str, ...]
    tokens: tuple[str, ...]
    """The report token of each."""
    pinned: tuple[bytes, ...]
    """Packed keys of a prompt that each holds all the time."""
    contract: IndexContract
    control_planes: tuple[str, ...]
    held: int
    rate: float
    """Blocks stored by each worker in a second, and as many removed."""


class Link(asyncio.Protocol):
    """One connection of an agent: the handshake of a WebSocket, what comes after it, and the server's frames."""

    def __init__(self, token: str, opening: Callable[[], bytes], resync: Callable[[], bytes]) -> None:
        self._token = token
        self._opening = opening
        self._resync = resync
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.open = self.greeted = False
        """Whether it is open, and whether it ever was."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        key = base64.b64encode(os.urandom(16)).decode()
        transport.write(
            f"GET {PATH} HTTP/1.1\r\nhost: bench\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\nsec-websocket-protocol: {SUBPROTOCOL}\r\n"
            f"authorization: Bearer {self._token}\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self.open:
            head, found, rest = self._received.partition(b"\r\n\r\n")
            if not found:
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                self._end(head.decode("latin-1").partition("\r\n")[0])
                return
            self._received, self.open, self.greeted = rest, True, True
            self.send(self._opening())
        while (frame := _taken(self._received)) is not None:
            self._obey(*frame)

    def _obey(self, kind: int, payload: bytes) -> None:
        if kind == _BINARY and isinstance(decode_down(payload), Resync):
            self.send(self._resync())
        elif kind == _PING:
            self.send(bytes([0x80 | _PONG, 0x80 | len(payload)]) + bytes(4) + payload)
        elif kind == _CLOSE:
            self._end(f"closed with {int.from_bytes(payload[:2], 'big')}")

    def send(self, message: bytes | memoryview) -> None:
        """Send it where the connection is open."""
        if self.open and self._transport is not None:
            self._transport.write(message)

    def _end(self, why: str) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.close()
        if not self.lost.done():
            self.lost.set_result(why)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error or "closed"))


def _taken(received: bytearray) -> tuple[int, bytes] | None:
    """The next frame of a server, taken off: its kind and what it says; None where it is not whole."""
    if len(received) < 2:
        return None
    size, at = received[1] & 0x7F, 2
    if size >= 126:
        at = 4 if size == 126 else 10
        size = int.from_bytes(received[2:at], "big")
    if len(received) < at + size:
        return None
    kind, payload = received[0] & 0x0F, bytes(received[at : at + size])
    del received[: at + size]
    return kind, payload


@dataclass
class FakeAgent:
    """One worker's report stream and its connections."""

    options: ScaleOptions
    number: int
    blocks: FakeBlocks
    links: dict[str, Link] = field(default_factory=dict)
    resyncs: int = 0
    lost: list[str] = field(default_factory=list)
    """Why connections ended that had been open."""
    due: float = 0.0
    state_due: float = 0.0
    _snapshot: tuple[int, bytes] = (0, b"")

    @property
    def name(self) -> str:
        return self.options.workers[self.number]

    async def keep(self, url: str) -> None:
        """Keep a connection to a control plane."""
        address, loop = urlsplit(url), asyncio.get_running_loop()
        host, port = address.hostname or "", address.port or 0
        while True:
            link = self.links[url] = Link(self.options.tokens[self.number], self._opening, self._asked)
            try:
                await loop.create_connection(lambda link=link: link, host, port)  # type: ignore[misc]
            except OSError as error:
                link.connection_lost(error)
            why = await link.lost
            if link.greeted:
                self.lost.append(f"{self.name}: {why}")
            await asyncio.sleep(random.random())

    def step(self, now: float, *, changing: bool) -> None:
        """Send what is due."""
        if now < self.due:
            return
        self.due = max(self.due + FRAME_SECONDS, now - FRAME_SECONDS)
        if changing:
            self.send(self.blocks.take())
        if now >= self.state_due:
            self.state_due = max(self.state_due + STATE_SECONDS, now)
            self.send(self.state())

    def send(self, message: bytes | memoryview) -> None:
        for link in self.links.values():
            link.send(message)

    def state(self) -> bytes:
        """The message of a State now."""
        blocks, held = self.blocks, self.options.held
        state = State(
            sequence=blocks.sequence,
            digest=blocks.digest,
            held=blocks.held,
            unkeyed=False,
            phase=Phase.READY,
            running=0,
            waiting=0,
            blocks_total=held,
            blocks_free=held // 4,
        )
        return message_of(encode(state))

    def snapshot(self) -> bytes:
        """The message of a snapshot now; made once while nothing changes."""
        if self._snapshot[0] != self.blocks.sequence:
            self._snapshot = (self.blocks.sequence, message_of(encode(self.blocks.snapshot())))
        return self._snapshot[1]

    def _opening(self) -> bytes:
        options = self.options
        hello = Hello(
            worker=self.name,
            pool=options.pool,
            epoch="fake",
            endpoint="http://127.0.0.1:1",
            agent_version="fake",
            contract=options.contract,
            blocks_total=self.blocks.held,
        )
        return message_of(encode(hello)) + self.snapshot() + self.state()

    def _asked(self) -> bytes:
        self.resyncs += 1
        return self.snapshot()


class FakeAgents:
    """All agents of the process: what they send, evenly over time, and the commands."""

    def __init__(self, options: ScaleOptions) -> None:
        self._changing = False
        cycle = Cycle(options.held, max(1, round(options.rate * FRAME_SECONDS)))
        self._agents = [
            FakeAgent(options, number, FakeBlocks(cycle, pinned)) for number, pinned in enumerate(options.pinned)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        for url in options.control_planes:
            self.join(url)

    def join(self, url: str) -> None:
        self._tasks += [asyncio.create_task(agent.keep(url)) for agent in self._agents]

    async def run(self) -> None:
        """Steps of all agents."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, agent in enumerate(self._agents):
            agent.due = agent.state_due = began + STATE_SECONDS * number / len(self._agents)
        while True:
            now = loop.time()
            for agent in self._agents:
                agent.step(now, changing=self._changing)
            await asyncio.sleep(TICK_SECONDS)

    def obey(self, command: str) -> dict[str, Any]:
        """Carry out a command; the answer."""
        name, _, argument = command.partition(" ")
        match name:
            case "run" | "rest":
                self._changing = name == "run"
            case "join":
                self.join(argument)
        if name != "rest":
            return {"cpu": time.process_time()}
        for agent in self._agents:
            agent.send(agent.state())
            agent.snapshot()
        return {
            "held": {agent.name: agent.blocks.held for agent in self._agents},
            "lost": [why for agent in self._agents for why in agent.lost],
        }


async def main() -> None:
    loop = asyncio.get_running_loop()
    options = msgspec.json.decode(await loop.run_in_executor(None, sys.stdin.readline), type=ScaleOptions)
    agents = FakeAgents(options)
    running = asyncio.create_task(agents.run())
    while command := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(agents.obey(command.strip())), flush=True)
    running.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    uvloop.run(main())
