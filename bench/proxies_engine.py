"""Engines that cost next to nothing: canned answers in vLLM's form, so that what is measured is who stands before them.

They speak what a proxy asks of a worker: chats, streamed or not, with token ids and usage where the body asks for them
(those of the prompt too, as vLLM sends them: four characters are a token), and the probes that routers begin with.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, Final, cast

import httptools
import msgspec

MODEL: Final = "bench"
TOKENS: Final = 8
"""Of an answer where the body does not bound them, each an event of its own in a stream."""
TOKEN_SECONDS: Final = 0.001
"""Between two of them: they are not to arrive as one."""
CHARACTERS_PER_TOKEN: Final = 4
BACKLOG: Final = 1024
_IDS: Final = b'"return_token_ids":true'
_USAGE: Final = b'"include_usage":true'
_STREAM: Final = b'"stream":true'
_MAX_TOKENS: Final = re.compile(rb'"max_(?:completion_)?tokens": ?(\d+)')
_DONE: Final = b"data: [DONE]\n\n"
_PROBES: Final = {
    b"/health": {},
    b"/v1/models": {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 131_072}],
    },
    b"/model_info": {"model_path": MODEL, "is_generation": True},
    b"/server_info": {"model_path": MODEL, "version": "0"},
    b"/version": {"version": "0.32.0"},
}


class EngineConnection(asyncio.Protocol):
    """One connection to an engine; requests come one after the other."""

    def __init__(self, token_seconds: float = TOKEN_SECONDS) -> None:
        self._token_seconds = token_seconds
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # a router asks first whether it may speak gRPC
            if self._transport is not None:
                self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        url, body = self._url, b"".join(self._body)
        self._url, self._body = b"", []
        if url == b"/v1/chat/completions":
            self._answer(body)
        elif url == b"/v1/completions":
            self._write(_whole(200, COMPLETION))
        else:
            known = _PROBES.get(url.partition(b"?")[0])
            self._write(_whole(200 if known is not None else 404, msgspec.json.encode(known)))

    def _answer(self, body: bytes) -> None:
        asked = body.replace(b'": ', b'":')[-400:] + body[:200]  # members stand around the messages, not in them
        ids = len(body) // CHARACTERS_PER_TOKEN if _IDS in asked else 0
        bound = _MAX_TOKENS.search(body)  # some routers put it amid their own members, or name it anew
        tokens = int(bound[1]) if bound else TOKENS
        if _STREAM not in asked:
            self._write(_whole(200, whole_answer(len(body), ids, tokens)))
            return
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        first, *rest = events(len(body), ids, tokens, usage=_USAGE in asked)
        self._write(head + _chunk(first))
        self._next(iter(rest))

    def _next(self, rest: Iterator[bytes]) -> None:
        event = next(rest, None)
        if event is None:
            self._write(b"0\r\n\r\n")
            return
        self._write(_chunk(event))
        asyncio.get_running_loop().call_later(self._token_seconds, self._next, rest)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


@asynccontextmanager
async def engines(count: int, *, token_seconds: float = TOKEN_SECONDS) -> Any:
    """The addresses of so many, which take ``token_seconds`` for each token of a stream but the first."""
    loop, made = asyncio.get_running_loop(), partial(EngineConnection, token_seconds)
    servers = [await loop.create_server(made, "127.0.0.1", 0, backlog=BACKLOG) for _ in range(count)]
    try:
        yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    finally:
        for server in servers:
            server.close()


COMPLETION: Final = msgspec.json.encode(
    {"id": "cmpl-bench", "object": "text_completion", "created": 1, "model": MODEL, "usage": None}
    | {"choices": [{"index": 0, "text": " word", "logprobs": None, "finish_reason": "length", "stop_reason": None}]}
)
"""The answer to any completion, whole."""


@lru_cache(maxsize=256)
def whole_answer(size: int, ids: int, tokens: int = TOKENS) -> bytes:
    """To a body of ``size`` bytes; ``ids`` is how many of the prompt are told, 0 for none of anything."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "word " * tokens,
        "refusal": None,
        "tool_calls": [],
        "reasoning": None,
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    choice["token_ids"] = _token_ids(tokens) if ids else None
    return msgspec.json.encode(
        _head("chat.completion")
        | {"choices": [choice], "service_tier": None, "system_fingerprint": "vllm-bench", "usage": _usage(size, tokens)}
        | {"prompt_logprobs": None, "prompt_token_ids": _token_ids(ids) or None, "kv_transfer_params": None}
    )


@lru_cache(maxsize=256)
def events(size: int, ids: int, tokens: int = TOKENS, *, usage: bool) -> tuple[bytes, ...]:
    """As ``whole_answer``, as a stream; the fingerprint stands in the last event before the end."""
    first = _choice({"role": "assistant", "content": ""})
    told = _head("chat.completion.chunk")
    out = [told | {"choices": [first], "prompt_token_ids": _token_ids(ids) or None, "prompt_text": None}]
    for number in range(tokens):
        last = number == tokens - 1
        choice = _choice({"content": "word "}, finish="length" if last else None)
        choice |= ({"stop_reason": None} if last else {}) | {"token_ids": [7000 + number] if ids else None}
        out.append(told | {"choices": [choice]} | ({"system_fingerprint": "vllm-bench"} if last and not usage else {}))
    if usage:
        out.append(told | {"choices": [], "usage": _usage(size, tokens), "system_fingerprint": "vllm-bench"})
    return (*(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in out), _DONE)


def _head(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "object": kind, "created": int(time.time()), "model": MODEL}


def _choice(delta: dict[str, str], *, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def _usage(size: int, tokens: int) -> dict[str, Any]:
    prompt = 1000 * (size // 4000)  # what a proxy adds to a body changes nothing that its client sees
    cached = {"audio_tokens": None, "cached_tokens": 0}
    total = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
    return total | {"prompt_tokens_details": cached}


def _token_ids(count: int) -> list[int]:
    return [1000 + number % 50_000 for number in range(count)]


def _whole(status: int, body: bytes) -> bytes:
    reason = b"OK" if status == 200 else b"Not Found"
    head = b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, reason, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
