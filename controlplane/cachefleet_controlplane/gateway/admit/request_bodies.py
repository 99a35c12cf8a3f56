"""Reads request bodies within their bounds: bytes, seconds, the tenant's share of the budget, parts of the JSON.

Long bodies are decoded in a thread, so that the event loop serves others meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from cachefleet_controlplane.gateway.apis.request_info import SPEECH
from cachefleet_controlplane.gateway.body_budget import BodyBudget, BodyShare
from cachefleet_controlplane.transport.native_server import SEND_SECONDS
from cachefleet_controlplane.wire.content_encoding import decoded, encoding_of
from cachefleet_controlplane.wire.http_exchange import STALL_SECONDS, Receive, Scope, read_body
from cachefleet_controlplane.wire.json_bounds import JsonBounds

T = TypeVar("T")

THREAD_BYTES: Final = 1024 * 1024
"""A longer body is decoded off the event loop."""
INFLATED_AT_ONCE: Final = 4
JSON_BOUNDS: Final = JsonBounds()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBounds:
    """Bounds on a body (bytes, seconds), on all bodies held at once (``buffered_bytes``), on requests under way,
    and on the seconds for which a client may not read its answer (``send_seconds``) or send nothing of its body
    (``stall_seconds``).
    """

    body_bytes: int
    body_seconds: float
    requests: int
    send_seconds: float = SEND_SECONDS
    stall_seconds: float = STALL_SECONDS
    buffered_bytes: int = 256 * 1024 * 1024


class RequestBodies:
    """Reads the bodies of one gateway."""

    def __init__(self, bounds: GatewayBounds) -> None:
        self._bounds = bounds
        self._budget = BodyBudget(bounds.buffered_bytes)
        self._inflating = asyncio.Semaphore(INFLATED_AT_ONCE)

    @property
    def held_bytes(self) -> int:
        """Bytes of all bodies that are held now."""
        return self._budget.held

    def share(self, tenant: str) -> BodyShare:
        """What a request's body takes of the budget, until the context ends."""
        return BodyShare(self._budget, tenant)

    async def read(self, scope: Scope, receive: Receive, share: BodyShare, parse: Callable[[bytes], T]) -> T:
        """The parsed body.

        ApiError 400 (not decodable, too many parts), 408 (late), 413 (too long), 415 (content-encoding), 503 (no room).
        """
        bounds, encoding = self._bounds, encoding_of(scope["headers"])
        body = await read_body(
            scope,
            receive,
            limit=bounds.body_bytes,
            seconds=bounds.body_seconds,
            stall_seconds=bounds.stall_seconds,
            take=share.take,
        )
        if encoding:
            body = await self._inflate(body, encoding, share)
        if scope["path"] not in SPEECH:
            parse = partial(_parsed, parse)
        return await asyncio.to_thread(parse, body) if len(body) > THREAD_BYTES else parse(body)

    async def _inflate(self, body: bytes, encoding: bytes, share: BodyShare) -> bytes:
        """Decode in a thread; few bodies at once, since what they grow to counts only afterwards."""
        async with self._inflating:
            plain = await asyncio.to_thread(decoded, body, encoding, limit=self._bounds.body_bytes)
            share.take(len(plain))
            return plain


def _parsed(parse: Callable[[bytes], T], body: bytes) -> T:
    JSON_BOUNDS.check(body)
    return parse(body)
