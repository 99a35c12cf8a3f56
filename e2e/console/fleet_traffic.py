"""What is asked of a fake fleet, so that every kind of panel has something to show."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from e2e.console.fake_fleet import MODEL, WORKERS, FakeFleet

WORDS: Final = ("cache", "fleet", "worker", "prefix", "block", "token", "request", "answer", "engine", "router")
TALKERS: Final = 6
TURNS: Final = 6
BURST: Final = 12
"""Requests at once, each of a quarter of a worker's blocks."""
_POSSIBLE: Final = frozenset({0, 200, 409, 429, 502, 503})
"""With an engine that dies and more requests than room. 409: the fake looks up a held request's handle twice, and what
it keeps may be gone in between.
"""
_CHATS: Final = "/v1/chat/completions"


@dataclass
class Traffic:
    """Requests until it is cancelled; their answers are not looked at, but those of ``checked``."""

    fleet: FakeFleet
    http: aiohttp.ClientSession
    restart_after: float
    """Seconds until an engine dies."""
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    keys: dict[str, str] = field(default_factory=dict)

    async def prepare(self) -> None:
        """Make tenants: two that talk, and one that may ask for next to nothing."""
        for name, more in (("acme", {}), ("globex", {}), ("limited", {"tokensPerMinute": 1})):
            await self.fleet.admin(self.http, "tenants", {"name": name} | more)
            self.keys[name] = (await self.fleet.admin(self.http, f"tenants/{name}/keys", {}))["key"]

    async def run(self) -> None:
        """Everything at once, until it is cancelled."""
        loops: list[Coroutine[Any, Any, None]] = [
            *(self._talk("acme" if number % 2 else "globex", number) for number in range(TALKERS)),
            self._strangers(),
            self._others(),
            self._bursts(),
            self._sockets(),
            self._references(),
            self._restart(),
        ]
        async with asyncio.TaskGroup() as tasks:
            for loop in loops:
                tasks.create_task(loop)

    async def _answer(self, path: str, body: Any) -> dict[str, Any]:
        """The JSON of an answer, nothing where it is no success."""
        headers = {"authorization": f"Bearer {self.keys['acme']}"}
        address = f"{self.fleet.running.gateway}{path}"
        async with self.http.post(address, json={"model": MODEL} | body, headers=headers) as answer:
            found: dict[str, Any] = await answer.json() if answer.ok else {}
            return found

    async def _ask(self, path: str, body: Any, *, tenant: str = "acme", **named: str) -> int:
        """The status of an answer, 0 where its connection breaks; ``named`` are headers."""
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        headers |= {name.replace("_", "-"): value for name, value in named.items()}
        address = f"{self.fleet.running.gateway}{path}"
        try:
            async with self.http.post(address, json={"model": MODEL} | body, headers=headers) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return 0

    async def _talk(self, tenant: str, number: int) -> None:
        """One conversation after the other, each beginning with the tenant's own words."""
        common = self._words(150, random.Random(tenant))
        for talk in range(1_000_000):
            messages = [{"role": "system", "content": common}]
            for _ in range(TURNS):
                messages.append({"role": "user", "content": self._words(15)})
                body = {"messages": messages, "max_tokens": 24, "stream": True}
                status = await self._ask(_CHATS, body, tenant=tenant, x_cachefleet_session=f"talk-{number}-{talk}")
                assert status in _POSSIBLE, status
                messages.append({"role": "assistant", "content": self._words(8)})
                await asyncio.sleep(self.chance.uniform(0.05, 0.2))

    async def _strangers(self) -> None:
        """Prompts that nobody has asked before: they miss, and evict what is there."""
        while True:
            await self._ask("/v1/completions", {"prompt": self._words(160), "max_tokens": 4}, tenant="globex")
            await asyncio.sleep(0.5)

    async def _others(self) -> None:
        """What is refused, or needs no keys."""
        while True:
            await self._ask(_CHATS, {"messages": [{"role": "user", "content": "hello"}]}, tenant="limited")
            await self._ask("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hello"}]})
            await self._ask("/v1/completions", {"prompt": self._words(900), "max_tokens": 1})
            await self._ask("/v1/completions", {"prompt": self._words(80), "max_tokens": 1}, prefer="if-available")
            await self._leave()
            await asyncio.sleep(1)

    async def _leave(self) -> None:
        """A client that does not wait for its answer's end."""
        asking = asyncio.create_task(self._ask("/v1/completions", {"prompt": "hello", "max_tokens": 512}))
        await asyncio.wait([asking], timeout=0.2)
        asking.cancel()
        await asyncio.wait([asking])

    async def _bursts(self) -> None:
        """More long prompts at once than there is room for."""
        while True:
            await asyncio.sleep(1)
            asked = [{"prompt": self._words(300), "max_tokens": 300} for _ in range(BURST)]
            await asyncio.gather(*(self._ask("/v1/completions", body) for body in asked))
            await asyncio.sleep(6)

    async def _sockets(self) -> None:
        """Two turns on a WebSocket, again and again."""
        address = f"{self.fleet.running.gateway}/v1/responses"
        while True:
            headers = {"authorization": f"Bearer {self.keys['acme']}"}
            async with self.http.ws_connect(address, headers=headers) as socket:
                previous: dict[str, str] = {}
                for _ in range(2):
                    asked = {
                        "type": "response.create",
                        "model": MODEL,
                        "input": self._words(40),
                        "max_output_tokens": 8,
                    }
                    await socket.send_json(asked | previous)
                    previous = {"previous_response_id": await _completed(socket)}
            await asyncio.sleep(1.5)

    async def _references(self) -> None:
        """Prompts of token ids that go on by reference; then the workers have lost what they kept."""
        while True:
            begin = {"prompt": self._ids(400), "max_tokens": 4, "return_prompt_cache_ref": True}
            ref = (await self._answer("/v1/completions", begin)).get("prompt_cache_ref")
            for lost in (False, True):
                if lost:
                    self._forget()
                if ref is not None:
                    more = {"prompt_cache_ref": ref, "append_token_ids": self._ids(8), "max_tokens": 4}
                    await self._ask("/v1/completions", more)
            await asyncio.sleep(1)

    def _forget(self) -> None:
        for engine in self.fleet.engines.values():
            if engine.running:
                engine.plugin.conversations.store.clear()

    async def _restart(self) -> None:
        """An engine that dies and comes back."""
        await asyncio.sleep(self.restart_after)
        engine = self.fleet.engines[WORKERS[-1]]
        await engine.crash()
        await asyncio.sleep(1)
        await engine.start()

    def _ids(self, count: int) -> list[int]:
        return [self.chance.randrange(65, 90) for _ in range(count)]

    def _words(self, count: int, chance: random.Random | None = None) -> str:
        return " ".join((chance or self.chance).choices(WORDS, k=count))


async def _completed(socket: aiohttp.ClientWebSocketResponse) -> str:
    """The id of the response when it is whole."""
    while True:
        event = await socket.receive_json()
        if event["type"] == "response.completed":
            return str(event["response"]["id"])
        if event["type"] in {"error", "response.failed"}:
            return ""
