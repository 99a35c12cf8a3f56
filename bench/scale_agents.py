"""One process of fake agents: ``python -m bench.scale_agents``, with its options as JSON in the first line of stdin.

Everything from the held blocks on is the agent's own code: streams, feed, send queues, connections, handshakes with the
fleet's report tokens, resyncs. Fake are the engine and what it holds (``scale_blocks``), so there are no events, polls,
policies or probes. Commands come as lines on stdin, and each is answered with a line of JSON on stdout:

    run             blocks change from now on
    rest            they change no more; answered with what each worker believes to hold
    join URL        a connection to one more control plane
    cpu             seconds of CPU of this process
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import aiohttp
import msgspec
import uvloop

from bench.scale_blocks import FakeResidents
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Drain, Hello, Phase, Policy, Warm
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.load_meter import Load
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports.feed import Feed
from cachefleet_worker.agent.reports.stream import Stream, WorkerState
from cachefleet_worker.agent.reports.targets import Registration
from cachefleet_worker.agent.reports.uplink import Uplink
from cachefleet_worker.agent.settings import AgentSettings

STATE_SECONDS: Final = 1.0


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
    folder: str
    held: int
    rate: float
    """Blocks stored by each worker in a second, and as many removed."""
    step_seconds: float
    """Between two steps of an engine that change what is held; 0: nothing changes."""


class _Unbidden:
    """Takes no commands: there is no engine to carry them out."""

    def policy(self, policy: Policy) -> None: ...
    def warm(self, warm: Warm) -> None: ...
    def drain(self, drain: Drain) -> None: ...


@dataclass
class FakeAgent:
    """One worker's report stream and its connections."""

    options: ScaleOptions
    number: int
    http: aiohttp.ClientSession
    residents: FakeResidents = field(init=False)
    feed: Feed = field(init=False)
    uplinks: list[asyncio.Task[None]] = field(default_factory=list)
    _metrics: AgentMetrics = field(default_factory=AgentMetrics)
    _state_due: float = 0.0
    _began: float | None = None

    def __post_init__(self) -> None:
        options = self.options
        self.residents = FakeResidents(options.held, options.pinned[self.number])
        self.feed = Feed(self._metrics)
        stream = Stream(_hello(options, self.name), cast("Residents", self.residents))
        state = WorkerState(Phase.READY, Load(blocks_total=options.held, blocks_free=options.held // 4))
        self.feed.begin({0: stream}, lambda _: state)

    @property
    def name(self) -> str:
        return self.options.workers[self.number]

    def join(self, url: str) -> None:
        """Keep a connection to a control plane."""
        options = self.options
        token = Path(options.folder) / f"{self.name}.token"
        token.write_text(options.tokens[self.number])
        settings = AgentSettings(
            worker=self.name,
            pool=options.pool,
            control_planes=(url,),
            token_file=token,
            index_key_file=Path(options.folder) / "index.key",
        )
        registration = Registration(wanted=True)
        uplink = Uplink(settings, self.feed, _Unbidden(), self._metrics, registration=registration, http=self.http)
        self.uplinks.append(asyncio.create_task(uplink.run()))

    def step(self, now: float, *, changing: bool) -> None:
        """The engine has made a step."""
        if changing:
            self._began = now if self._began is None else self._began
            self.residents.now = self.options.held + int((now - self._began) * self.options.rate)
        if now >= self._state_due:
            self._state_due = max(self._state_due + STATE_SECONDS, now)
            self.feed.publish_state()
        elif changing:
            self.feed.flush()


def _hello(options: ScaleOptions, worker: str) -> Hello:
    return Hello(
        worker=worker,
        pool=options.pool,
        epoch="fake",
        endpoint="http://127.0.0.1:1",
        agent_version="fake",
        contract=options.contract,
        blocks_total=options.held + len(options.pinned[0]),
    )


class FakeAgents:
    """All agents of the process: their steps, one after the other, and the commands."""

    def __init__(self, options: ScaleOptions, http: aiohttp.ClientSession) -> None:
        self._options = options
        self._changing = False
        self._agents = [FakeAgent(options, number, http) for number in range(len(options.workers))]
        for url in options.control_planes:
            self.join(url)

    def join(self, url: str) -> None:
        for agent in self._agents:
            agent.join(url)

    async def run(self) -> None:
        """Steps of all agents, evenly over time."""
        loop = asyncio.get_running_loop()
        seconds = self._options.step_seconds
        began = loop.time()
        for number, agent in enumerate(self._agents):
            loop.call_at(began + seconds * number / len(self._agents), self._step, agent, seconds)
        await asyncio.Event().wait()

    def _step(self, agent: FakeAgent, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        agent.step(now, changing=self._changing)
        loop.call_at(now + seconds, self._step, agent, seconds)

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
            agent.feed.publish_state()
        return {"held": {agent.name: agent.residents.held for agent in self._agents}}


async def main() -> None:
    loop = asyncio.get_running_loop()
    options = msgspec.json.decode(await loop.run_in_executor(None, sys.stdin.readline), type=ScaleOptions)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        agents = FakeAgents(options, http)
        running = asyncio.create_task(agents.run())
        while command := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(agents.obey(command.strip())), flush=True)
        running.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    uvloop.run(main())
