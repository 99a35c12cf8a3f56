"""``GET /v1/fleet/snapshot`` in the API server: asks an engine, reads its socket, passes the bytes on unchanged."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from cachefleet_worker.plugin.asgi import HttpError, Response, error_response
from cachefleet_worker.plugin.snapshot.snapshot import SnapshotCall, SnapshotCallResult

MEDIA_TYPE: Final = "application/vnd.cachefleet.snapshot"
RETRY_AFTER_SECONDS: Final = 1
_CHUNK_BYTES: Final = 256 * 1024

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Calls(Protocol):
    """The part of EngineCalls that is needed here."""

    async def one(self, rank: int, name: str, payload: bytes = b"") -> Any: ...


class SnapshotRefusedError(Exception):
    """The engine gives no snapshot now; ``busy`` where a retry soon may succeed."""

    def __init__(self, message: str, *, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


async def snapshot_frames(calls: Calls, rank: int, *, timeout_seconds: float) -> AsyncIterator[bytes]:
    """The bytes of a snapshot as they come; SnapshotRefusedError or EngineCallError before the first.

    TimeoutError where the whole takes longer than ``timeout_seconds``. An interrupted snapshot lacks its end frame.
    """
    end = asyncio.get_running_loop().time() + timeout_seconds
    with ExitStack() as stack:
        with tempfile.TemporaryDirectory(
            prefix="cachefleet-"
        ) as folder:  # nothing is left where this process is killed
            async with asyncio.timeout_at(end):
                reader = await _connected(calls, rank, str(Path(folder) / "snapshot"), stack)
        while chunk := await _read(reader, end):
            yield chunk


async def _read(reader: asyncio.StreamReader, end: float) -> bytes:
    async with asyncio.timeout_at(end):
        return await reader.read(_CHUNK_BYTES)


async def _connected(calls: Calls, rank: int, path: str, stack: ExitStack) -> asyncio.StreamReader:
    """Ask the engine for a snapshot, and wait until it connects."""
    arrived: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if arrived.done():
            writer.close()
        else:
            arrived.set_result((reader, writer))

    server = await asyncio.start_unix_server(accept, path, limit=_CHUNK_BYTES)
    stack.callback(server.close)
    answer = msgspec.convert(
        await calls.one(rank, "snapshot", msgspec.msgpack.encode(SnapshotCall(path))), SnapshotCallResult
    )
    if not answer.started:
        raise SnapshotRefusedError(answer.reason or "another snapshot is on its way", busy=answer.busy)
    reader, writer = await arrived
    stack.callback(writer.close)
    return reader


async def snapshot_response(calls: Calls, query: dict[str, str], *, timeout_seconds: float) -> Response:
    """The answer to ``GET /snapshot?rank=``. HttpError for an invalid rank, and where snapshots are off."""
    text = query.get("rank", "0")
    if not text.isdecimal() or len(text) > 4:
        raise HttpError(400, "bad_rank", "rank: must be a number from 0 on")
    frames = snapshot_frames(calls, int(text), timeout_seconds=timeout_seconds)
    try:
        first = await anext(frames, b"")
    except SnapshotRefusedError as error:
        if not error.busy:
            raise HttpError(503, "snapshot_off", str(error)) from None
        busy = error_response(HttpError(429, "busy", str(error)))
        return Response(busy.content, 429, headers=((b"retry-after", str(RETRY_AFTER_SECONDS).encode()),))
    except TimeoutError:
        raise HttpError(504, "timeout", "the engine sent no snapshot in time") from None
    except OSError as error:  # a temporary folder whose path is too long for a socket, say
        message = f"no socket for the snapshot in {tempfile.gettempdir()}: {error}"
        raise HttpError(503, "snapshot_off", message) from None
    return Response(_with_first(first, frames), media_type=MEDIA_TYPE)


async def _with_first(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for each in rest:
        yield each
