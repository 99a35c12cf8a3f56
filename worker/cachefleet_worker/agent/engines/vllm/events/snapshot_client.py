"""Client of the plugin's snapshots: everything an engine rank holds, over HTTP, exact at a sequence number.

The body is frames, each a little-endian u32 length and as many bytes: a header, event batches as on the wire, and a
last frame of length 0. Without that last one, or where its totals are not the header's, the snapshot is discarded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

import aiohttp
import msgspec
from msgspec import Meta, Struct

from cachefleet_core.prompt_keys import TOKEN_HEADER
from cachefleet_worker.agent.blocks.block_events import BlockRemoved, BlockStored, Total
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.tls import PLAIN, EngineTls
from cachefleet_worker.agent.engines.vllm.events.kv_events import Batch, BatchError, decode_batch

PATH: Final = "/v1/fleet/snapshot"
_LENGTH_BYTES: Final = 4


class SnapshotError(Exception):
    """No whole snapshot came; a retry may succeed. The text holds no content of requests."""


class Head(Struct, frozen=True):
    """A snapshot's header: process, sequence number, totals. ``blocks`` counts (block, medium)."""

    boot: Annotated[str, Meta(min_length=1, max_length=253)]
    sequence: Annotated[int, Meta(ge=-1)]
    blocks: Annotated[int, Meta(ge=0)]
    totals: tuple[Total, ...] = ()


class Snapshots(Protocol):
    """Where a source fetches snapshots from."""

    async def fetch(self, rank: int, draft: Residents) -> Head:
        """Fill the empty draft with everything a rank holds. SnapshotError where it did not come whole."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """``seconds`` bounds a whole snapshot, ``silence_seconds`` the wait for its next bytes."""

    seconds: float = 60.0
    silence_seconds: float = 10.0
    frame_bytes: int = 64 * 1024 * 1024


class SnapshotClient:
    """Fetches snapshots from the plugin of one engine."""

    def __init__(self, url: str, *, key: str, limits: SnapshotLimits | None = None, tls: EngineTls = PLAIN) -> None:
        self._url = url
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {key}", TOKEN_HEADER: key} if key else {}
        self._limits = limits or SnapshotLimits()

    async def fetch(self, rank: int, draft: Residents) -> Head:
        """As the Protocol says; a timeout is a SnapshotError."""
        timeout = aiohttp.ClientTimeout(total=self._limits.seconds, sock_read=self._limits.silence_seconds)
        try:
            async with (
                aiohttp.ClientSession(trust_env=False, timeout=timeout) as http,
                http.get(
                    self._url + PATH,
                    params={"rank": rank},
                    headers=self._headers,
                    allow_redirects=False,
                    ssl=self._tls.trusted.context(),
                    server_hostname=self._tls.server_name,
                ) as response,
            ):
                if response.status != 200:
                    raise SnapshotError(f"HTTP {response.status}")
                return await self._read(response.content, draft)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise SnapshotError(type(error).__name__) from error

    async def _read(self, body: aiohttp.StreamReader, draft: Residents) -> Head:
        frames = self._frames(body)
        head = _head(await anext(frames, b""))
        stored = 0
        async for frame in frames:
            stored += _fill(draft, frame)
            await asyncio.sleep(0)
        if stored != head.blocks or not draft.agrees(head.totals):
            raise SnapshotError("its sums are not those of what it holds")
        return head

    async def _frames(self, body: aiohttp.StreamReader) -> AsyncIterator[bytes]:
        """All frames before the end frame. SnapshotError where that is missing."""
        try:
            while length := int.from_bytes(await body.readexactly(_LENGTH_BYTES), "little"):
                if length > self._limits.frame_bytes:
                    raise SnapshotError(f"a frame of {length} bytes")
                yield await body.readexactly(length)
        except asyncio.IncompleteReadError:
            raise SnapshotError("it broke off") from None


def _head(frame: bytes) -> Head:
    try:
        return msgspec.msgpack.decode(frame, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SnapshotError(f"not a header ({type(error).__name__})") from None


def _fill(draft: Residents, frame: bytes) -> int:
    """Put a frame's events in the draft; returns how many blocks it adds, less those it removes."""
    try:
        batch = decode_batch(frame)
    except BatchError as error:
        raise SnapshotError(str(error)) from None
    if batch.unknown or batch.malformed:
        raise SnapshotError("an event in it cannot be read")
    draft.apply(batch.events)
    return _blocks(batch)


def _blocks(batch: Batch) -> int:
    stored = sum(len(event.block_hashes) for event in batch.events if isinstance(event, BlockStored))
    return stored - sum(len(event.block_hashes) for event in batch.events if isinstance(event, BlockRemoved))
