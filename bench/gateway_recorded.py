"""What recording streams costs the gateway: the same streams before an engine that records them, and one that does not.

    python -m bench.gateway --recorded      # about a minute

Streams that another worker can make again (docs/decisions.md) have their record in them, which the gateway takes out
and keeps while they last, with the request's body. Two gateways, each before a fake engine of its own, are asked the
same in turns, without pause; CPU is that of all threads of a gateway, by the kernel's count. The bar: TOKENS of a
stream cost at most BAR times what they cost unrecorded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.gateway_profile import nanoseconds
from bench.parts import POOL, Running, control_plane, cores, fake_engine
from cachefleet_core.tenancy import FleetKey

RESULTS: Final = Path(__file__).parent / "results" / "gateway-recorded.json"
BAR: Final = 1.15
TOKENS: Final = 64
CONNECTIONS: Final = 8
REQUESTS: Final = 80
"""Of a form and side in each turn."""
READY_SECONDS: Final = 60.0
_TEXT: Final = "cache fleet worker prefix block token request answer engine router prompt system " * 25
_SCHEMA: Final = {"type": "object", "properties": {"at": {"type": "integer"}}}
_FUNCTION: Final = {"name": "tide", "description": "the tide", "parameters": _SCHEMA}
_STREAM: Final = {"model": "bench", "stream": True, "ignore_eos": True, "max_tokens": TOKENS}
_NUMBERS: Final = itertools.count()


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": _TEXT + question}]


def form(name: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a stream of this form; no question comes twice."""
    question = f"question {next(_NUMBERS)}"
    if name == "chat with tools":
        tools = [{"type": "function", "function": _FUNCTION}]
        return "/v1/chat/completions", _STREAM | {"messages": _asked(question), "tools": tools}
    if name == "messages":
        return "/v1/messages", _STREAM | {"messages": _asked(question)}
    asked = {"input": _TEXT + question, "max_output_tokens": TOKENS, "store": False}
    return "/v1/responses", {"model": "bench", "stream": True} | asked


FORMS: Final = ("chat with tools", "messages", "responses")


@dataclass(slots=True)
class Side:
    """A gateway, and what its streams have cost it: nanoseconds of CPU and requests, by form."""

    running: Running
    spent: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FORMS, 0))
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FORMS, 0))

    def microseconds(self, name: str) -> float:
        """CPU of a stream."""
        return self.spent[name] / 1000 / max(1, self.requests[name])

    async def turn(self, http: aiohttp.ClientSession, name: str, *, counts: bool) -> None:
        """Ask REQUESTS streams of a form, of CONNECTIONS."""
        left, before = iter(range(REQUESTS)), sum(nanoseconds(self.running.pid))
        await asyncio.gather(*(self._connection(http, name, left) for _ in range(CONNECTIONS)))
        if counts:
            self.spent[name] += sum(nanoseconds(self.running.pid)) - before
            self.requests[name] += REQUESTS

    async def _connection(self, http: aiohttp.ClientSession, name: str, left: Iterator[int]) -> None:
        for _ in left:
            await self.ask(http, name)

    async def ask(self, http: aiohttp.ClientSession, name: str) -> aiohttp.ClientResponse:
        """One whole stream. RuntimeError for another answer."""
        path, body = form(name)
        async with http.post(self.running.gateway + path, json=body) as answer:
            told = await answer.read()
            if answer.status != 200 or b"cachefleet.replay" in told or b"error" in told:
                raise RuntimeError(f"{path} answered {answer.status}: {told[:500]!r}")
            return answer

    async def ready(self, http: aiohttp.ClientSession) -> None:
        """Wait until its agent has reported, and with it what the engine records. TimeoutError."""
        async with asyncio.timeout(READY_SECONDS):
            while (await self.ask(http, FORMS[0])).headers.get("x-cachefleet-knowledge") != "exact":  # noqa: ASYNC110 - another process is asked
                await asyncio.sleep(0.2)


async def measure(sides: Sequence[Side], *, rounds: int) -> None:
    """All forms of both sides, in turns; the first turn is not counted."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        for side in sides:
            await side.ready(http)
        for number, name in itertools.product(range(rounds + 1), FORMS):
            for side in sides if number % 2 else reversed(sides):
                await side.turn(http, name, counts=number > 0)


def rows(recorded: Side, plain: Side) -> Iterator[dict[str, Any]]:
    """A row for each form: microseconds of a stream on both sides, and their ratio."""
    for name in FORMS:
        ours, peer = recorded.microseconds(name), plain.microseconds(name)
        yield {"row": f"{name}, {TOKENS} tokens", "ours": ours, "peer": peer, "ratio": ours / peer, "unit": "us"}


@contextlib.contextmanager
def side(folder: Path, key: FleetKey, *, unrecorded: bool, mine: set[int], core: set[int]) -> Iterator[Side]:
    """A gateway before an engine of its own, whose files are in ``folder``."""
    folder.mkdir()
    options = {"plugin": True, "natural_tokens": TOKENS, "unrecorded": unrecorded}
    with (
        fake_engine(folder, key.worker_key(POOL), core=mine, **options) as engine,
        control_plane(folder, key, engine, core=core, agent_core=mine) as running,
    ):
        yield Side(running)


def run(*, rounds: int) -> None:
    """Measure, print, and write the rows. SystemExit 1 where a form costs more than BAR times as much."""
    mine, core = cores(2)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        key, folder = FleetKey.generate(), Path(name)
        made = [
            stack.enter_context(side(folder / told, key, unrecorded=told == "plain", mine=mine, core=core))
            for told in ("recorded", "plain")
        ]
        asyncio.run(measure(made, rounds=rounds))
        found = list(rows(made[0], made[1]))
    print(f"{'microseconds of CPU of a stream':<36}{'recorded':>12}{'not':>12}{'ratio':>8}")
    for row in found:
        print(f"{row['row']:<36}{row['ours']:>12.0f}{row['peer']:>12.0f}{row['ratio']:>8.2f}")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps({"rows": found, "bar": BAR}, indent=1) + "\n")
    if any(row["ratio"] > BAR for row in found):
        raise SystemExit(f"recording costs more than {BAR} times as much")
