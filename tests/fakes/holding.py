"""Requests that the fake engine's plugin holds: keys first, and the answer once it is told to go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web

from cachefleet_core.engine.held_requests import (
    GO,
    HOLD_HEADER,
    KEYS,
    MEDIA_TYPE,
    Head,
    Hold,
    frame,
    head_frame,
    read_hold,
)

INNER = "x-fake-engine-inner"
"""Of the request that the fake asks itself, in the second part."""
_NOT_PASSED = frozenset({HOLD_HEADER, "content-length", "transfer-encoding", "host"})

Document = Callable[[Hold, bytes], bytes]


async def first_part(request: web.Request) -> bytes:
    """The body of a held request."""
    return await request.content.readexactly(read_hold(request.headers[HOLD_HEADER].encode()).length)


async def hold(request: web.Request, body: bytes, url: str, document: Document) -> web.StreamResponse:
    """Say the keys of ``body``; then, when told to, what the engine at ``url`` answers to it."""
    found = document(read_hold(request.headers[HOLD_HEADER].encode()), body)
    response = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE})
    await response.prepare(request)
    await response.write(frame(KEYS, found))
    try:
        await request.content.readexactly(len(GO))
    except (asyncio.IncompleteReadError, ConnectionError):
        return response
    headers = {name: value for name, value in request.headers.items() if name.lower() not in _NOT_PASSED}
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.post(url + request.path_qs, data=body, headers=headers | {INNER: "1"}) as answer,
    ):
        told = tuple((name.lower(), value) for name, value in answer.headers.items())
        await response.write(head_frame(Head(answer.status, told)))
        async for piece in answer.content.iter_any():
            await response.write(piece)
    return response
