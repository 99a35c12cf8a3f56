"""Requests to an ASGI application in this process, and an engine client that answers as told."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.settings import PluginSettings

Message = MutableMapping[str, Any]


@dataclass
class Answer:
    """What came back; ``whole`` is False where the application left a stream without its end."""

    status: int
    headers: dict[bytes, bytes]
    content: bytes = b""
    whole: bool = False

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


@dataclass
class Sent:
    """A request's body in parts, and what is received after it."""

    parts: list[bytes]
    then: Callable[[], Any] | None = None
    taken: int = 0

    async def receive(self) -> Message:
        self.taken += 1
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts) or self.then is not None}
        if self.then is not None:
            await self.then()
        return {"type": "http.disconnect"}


async def ask(
    app: Any,
    method: str,
    target: str,
    *,
    body: bytes | Sent = b"",
    headers: dict[str, str] | None = None,
    root_path: str = "/v1/fleet",
) -> Answer:
    """The application's answer; whatever it raises comes through."""
    path, _, query = target.partition("?")
    sent = body if isinstance(body, Sent) else Sent([body])
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    answers: list[Answer] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answers.append(Answer(message["status"], dict(message["headers"])))
            return
        answers[-1].content += message.get("body", b"")
        answers[-1].whole = not message.get("more_body", False)

    await app(scope, sent.receive, send)
    (answer,) = answers
    return answer


@dataclass
class EngineCore:
    """vLLM's client of its engines, as far as the routes use it: ``answers`` by name of the call."""

    answers: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    calls: list[tuple[int, str, bytes]] = field(default_factory=list)

    @property
    def core_engines(self) -> list[bytes]:
        return [rank.to_bytes(2, "little") for rank in range(self.ranks)]

    async def _call_utility_async(self, method: str, name: str, payload: bytes, *, engine: bytes) -> bytes:
        assert method == "cachefleet_call"
        rank = int.from_bytes(engine, "little")
        self.calls.append((rank, name, payload))
        answer = self.answers[name]
        if callable(answer):
            answer = await answer(rank)
        return answer if isinstance(answer, bytes) else msgspec.msgpack.encode(answer)

    def client(self) -> Any:
        return SimpleNamespace(engine_core=self)


def process(settings: PluginSettings | None = None) -> Process:
    """The plugin's part of a process of its own."""
    capabilities = Capabilities()
    return Process(settings or PluginSettings(), capabilities, Faults(capabilities), {})
