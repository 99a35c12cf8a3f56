"""A client's WebSocket connection to a gateway, and what is said on it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from tests.controlplane.gateway.harness import MODEL, Front
from tests.fakes.engine import FakeEngine

PREVIOUS: Final = "previous_response_id"
ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "error"})

Event = dict[str, Any]


@asynccontextmanager
async def connected(
    gate: Front, path: str = Endpoint.RESPONSES, *, origin: Any = None, **headers: str
) -> AsyncIterator[ClientConnection]:
    """A connection without timers of its own: the loop of a test may be in a hurry."""
    async with connect(
        gate.url.replace("http", "ws", 1) + path,
        origin=origin,
        additional_headers={name.replace("_", "-"): value for name, value in headers.items()},
        compression=None,
        proxy=None,
        max_size=None,
        open_timeout=None,
        close_timeout=None,
        ping_interval=None,
    ) as socket:
        yield socket


def create(text: Any = "hello", previous: str | None = None, **fields: Any) -> str:
    own = {"type": "response.create", "model": MODEL, "input": text, "max_output_tokens": 4}
    return json.dumps(own | ({PREVIOUS: previous} if previous else {}) | fields)


async def answer(socket: ClientConnection) -> list[Event]:
    """All events of the next answer."""
    events: list[Event] = []
    while not events or events[-1]["type"] not in ENDS:
        said = await socket.recv()
        assert isinstance(said, str)
        events.append(json.loads(said))
    return events


async def ask(socket: ClientConnection, message: str | bytes) -> Event:
    """Send a message; the last event of its answer."""
    await socket.send(message)
    return (await answer(socket))[-1]


async def respond(socket: ClientConnection, *args: Any, **fields: Any) -> Event:
    """The response of a request that must be answered."""
    last = await ask(socket, create(*args, **fields))
    assert last["type"] == "response.completed", last
    response: Event = last["response"]
    return response


async def refused(socket: ClientConnection, message: str | bytes) -> tuple[int, str | None, str]:
    """Status, member and code of the error that a message is answered with."""
    last = await ask(socket, message)
    assert last["type"] == "error", last
    assert last["error"]["message"]
    return last["status"], last["error"]["param"], last["error"]["code"]


async def closed(socket: ClientConnection) -> tuple[int, str]:
    """How the server closes, after whatever else it says."""
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    assert socket.close_code is not None
    return socket.close_code, socket.close_reason or ""


def sent(worker: FakeEngine) -> Event:
    """The last body that an engine was asked for a response with."""
    last = [seen for seen in worker.requests if seen.path == Endpoint.RESPONSES][-1]
    body: Event = json.loads(last.body)
    return body


def said(response: Event) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text
