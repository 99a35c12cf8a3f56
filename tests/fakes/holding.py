"""Requests that the fake engine's plugin holds: keys first, and the answer once it is told to go on."""

from __future__ import annotations

import json
from collections.abc import Callable

import aiohttp
import msgspec
from aiohttp import web

from cachefleet_core.engine.held_requests import (
    HOLD_HEADER,
    KEYS,
    MEDIA_TYPE,
    Head,
    Hold,
    LateMembers,
    frame,
    head_frame,
    read_go,
    read_hold,
)

INNER = "x-fake-engine-inner"
"""Of the request that the fake asks itself, in the second part."""
_NOT_PASSED = frozenset({HOLD_HEADER, "content-length", "transfer-encoding", "host"})

Document = Callable[[Hold, bytes], bytes]


async def first_part(request: web.Request) -> bytes:
    """The body of a held request."""
    return await request.content.readexactly(read_hold(request.headers[HOLD_HEADER].encode()).length)


async def hold(
    request: web.Request, body: bytes, url: str, document: Document, late: list[LateMembers]
) -> web.StreamResponse:
    """Say the keys of ``body``; then, when told to, what the engine at ``url`` answers to it.

    ``late`` gets the members that come then.
    """
    found = document(read_hold(request.headers[HOLD_HEADER].encode()), body)
    response = web.StreamResponse(headers={"Content-Type": MEDIA_TYPE})
    await response.prepare(request)
    await response.write(frame(KEYS, found))
    try:
        second = await request.content.read()
    except (aiohttp.ClientError, ConnectionError):
        return response
    members = read_go(second)
    late.append(members)
    body = _with_members(body, members)
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


def _with_members(body: bytes, members: LateMembers) -> bytes:
    """The body with the members that came late."""
    given = msgspec.to_builtins(members)
    return json.dumps(json.loads(body) | given).encode() if given else body
