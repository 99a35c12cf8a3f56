"""One side of a comparison: requests to an engine, real or fake, and the events it publishes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec
import zmq

END: Final = (-1).to_bytes(8, "big", signed=True)
REPLAY_MILLISECONDS: Final = 20_000
Json = Any


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer: its JSON body, or the chunks of its stream; ``done`` where a stream ended as it should."""

    status: int
    content_type: str
    body: Json
    done: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    topic: bytes
    sequence: int
    payload: bytes

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(msgspec.msgpack.decode(self.payload)[1])


@dataclass(frozen=True, slots=True)
class Side:
    """An engine as its clients see it."""

    url: str
    events_endpoint: str
    replay_endpoint: str
    headers: dict[str, str]
    session: aiohttp.ClientSession

    async def send(
        self, path: str, body: Json = None, *, method: str = "POST", headers: dict[str, str] | None = None
    ) -> Exchange:
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **(self.headers if headers is None else headers)}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as response:
            text = await response.text()
            kind = response.headers.get("Content-Type", "")
            if kind.startswith("text/event-stream"):
                return _stream(response.status, kind, text)
            return Exchange(response.status, kind, json.loads(text) if "json" in kind else text)

    async def complete(self, prompt: Json, **body: Any) -> Exchange:
        """One token of completion, unless asked otherwise."""
        body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True} | body
        exchange = await self.send("/v1/completions", body)
        assert exchange.status == 200, exchange
        return exchange

    async def cached(self, prompt: Json, **body: Any) -> int:
        """Tokens of the prompt that the engine says it had cached."""
        exchange = await self.complete(prompt, **body)
        return int(exchange.body["usage"]["prompt_tokens_details"]["cached_tokens"])

    async def reset(self) -> None:
        """Forget the prefix cache; an engine that has just answered may need a moment for its last blocks."""
        async with asyncio.timeout(60):
            while not (await self.send("/reset_prefix_cache")).body["success"]:  # noqa: ASYNC110 # another process
                await asyncio.sleep(0.02)

    async def replay(self, start: int = 0) -> list[Batch]:
        return await asyncio.to_thread(_replay, self.replay_endpoint, start)

    async def next_sequence(self) -> int:
        batches = await self.replay()
        return batches[-1].sequence + 1 if batches else 0

    async def metrics(self) -> dict[str, float]:
        """Samples by name with labels, as written."""
        page = (await self.send("/metrics", method="GET")).body
        samples = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}


def _stream(status: int, kind: str, text: str) -> Exchange:
    events = [_data(event) for event in text.split("\n\n") if event]
    done = bool(events) and events[-1] == "[DONE]"
    return Exchange(status, kind, [json.loads(event) for event in events if event != "[DONE]"], done)


def _data(event: str) -> str:
    """The payload of an event, which a line with its name may precede."""
    name, _, data = event.partition("\n")
    if not data:
        return event.removeprefix("data: ")
    payload = data.removeprefix("data: ")
    assert f'"type":"{name.removeprefix("event: ")}"' in payload, event
    return payload


def _replay(endpoint: str, start: int) -> list[Batch]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVHWM, 0)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        batches: list[Batch] = []
        while True:
            if not dealer.poll(REPLAY_MILLISECONDS):
                raise TimeoutError(f"no end of the replay from {endpoint}")
            empty, topic, sequence, payload = dealer.recv_multipart()
            assert empty == b""
            if sequence == END:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append(Batch(topic, int.from_bytes(sequence, "big"), payload))


class Held:
    """What a run of events says an engine holds: hashes with the number of their copies."""

    def __init__(self) -> None:
        self.copies: dict[Any, int] = {}
        self.tokens: dict[Any, tuple[int, ...]] = {}
        self.parents: dict[Any, Any] = {}

    def apply(self, batches: Iterable[Batch]) -> None:
        """AssertionError where an event contradicts those before it."""
        for batch in batches:
            for event in batch.events:
                self._apply(event)

    def _apply(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "BlockStored":
                self._store(event)
            case "BlockRemoved":
                for block in event["block_hashes"]:
                    assert self.copies.get(block), "removed, but never stored"
                    self.copies[block] -= 1
                    if not self.copies[block]:
                        del self.copies[block]
            case "AllBlocksCleared":
                self.copies.clear()

    def _store(self, event: dict[str, Any]) -> None:
        parent, size = event["parent_block_hash"], event["block_size"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"])
        for i, block in enumerate(event["block_hashes"]):
            self.copies[block] = self.copies.get(block, 0) + 1
            self.tokens[block] = tuple(event["token_ids"][i * size : (i + 1) * size])
            self.parents[block] = parent
            parent = block

    def depth(self, prompt: list[int], size: int) -> int:
        """Blocks of ``prompt``, never all of it, that are held from its start."""
        children = {(self.parents[block], self.tokens[block]): block for block in self.copies}
        parent, depth = None, 0
        while (depth + 1) * size < len(prompt):
            block = children.get((parent, tuple(prompt[depth * size : (depth + 1) * size])))
            if block is None:
                break
            parent, depth = block, depth + 1
        return depth
