"""The client of the plugin's snapshots: a whole one fills a draft, anything else is an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cachefleet_core.tls_names import AUTHORITIES
from cachefleet_runtime.tls import TrustedAuthorities, server_context
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.tls import PLAIN, EngineTls
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import (
    Head,
    SnapshotClient,
    SnapshotError,
    SnapshotLimits,
)
from cachefleet_worker.plugin.snapshot.event_batches import END, framed
from tests.fakes.secret_volume import SecretVolume, authority, issued
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, Block, ModelEngine
from tests.worker.agent.receiver import Receiver
from tests.worker.agent.snapshot_server import SnapshotServer

Change = Callable[[list[bytes]], list[bytes]]
LIMITS = SnapshotLimits(seconds=60, silence_seconds=30, frame_bytes=10_000)
HASTY = replace(LIMITS, silence_seconds=0.2)


@pytest.fixture
def engine() -> ModelEngine:
    engine = ModelEngine(plugin=True)
    root = Block((0, 0), salt="salt")
    chain = [root, *(Block((n, n), root) for n in range(1, 9))]
    for block in chain:
        engine.store([block])
    engine.remove(root)
    engine.publish()
    return engine


@pytest.fixture
async def server(engine: ModelEngine) -> AsyncIterator[SnapshotServer]:
    async with SnapshotServer(engine) as server:
        yield server


async def fetched(server: SnapshotServer, key: str = "key", limits: SnapshotLimits = LIMITS) -> tuple[Head, Residents]:
    draft = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
    return await SnapshotClient(server.url, key=key, limits=limits).fetch(0, draft), draft


async def test_a_whole_snapshot_fills_the_draft(server: SnapshotServer, engine: ModelEngine) -> None:
    head, draft = await fetched(server)
    assert (head.boot, head.sequence, head.blocks) == ("boot", 0, 8)
    receiver = Receiver()
    receiver.apply(draft.take())
    assert receiver.keys == engine.truth()


async def test_an_empty_engine_gives_an_empty_snapshot() -> None:
    async with SnapshotServer(ModelEngine(plugin=True)) as server:
        head, draft = await fetched(server)
    assert (head.sequence, head.blocks, draft.held) == (-1, 0, 0)


async def test_an_engine_that_serves_tls_is_verified_as_for_all_else(engine: ModelEngine, tmp_path: Path) -> None:
    volume = SecretVolume(tmp_path / "tls", issued(authority(), "demo.workers"))
    draft = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
    async with SnapshotServer(engine, tls=server_context(volume.folder)) as server:
        trusted = TrustedAuthorities(volume.folder / AUTHORITIES)
        named = SnapshotClient(server.url, key="key", tls=EngineTls(trusted, "demo.workers"))
        assert (await named.fetch(0, draft)).blocks == 8
        for wrong in (PLAIN, EngineTls(trusted, "other.workers")):
            with pytest.raises(SnapshotError):
                await SnapshotClient(server.url, key="key", tls=wrong).fetch(0, draft)
        assert server.served == 1


def headed(**changes: object) -> Change:
    """A snapshot whose header says something else."""

    def change(frames: list[bytes]) -> list[bytes]:
        header = msgspec.msgpack.decode(frames[0][4:]) | changes
        return [framed(msgspec.msgpack.encode(header)), *frames[1:]]

    return change


def damaged(frame: bytes) -> bytes:
    return frame.replace(b"BlockStored", b"BlockStirred"[:11])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda frames: [], "it broke off"),
        (lambda frames: frames[:-1], "it broke off"),
        (lambda frames: [*frames[:2], frames[2][:-3]], "it broke off"),
        (lambda frames: [END], "not a header"),
        (lambda frames: [framed(b"\xc1"), *frames[1:]], "not a header"),
        (
            lambda frames: [framed(msgspec.msgpack.encode({"boot": "", "sequence": 1, "blocks": 0})), END],
            "not a header",
        ),
        (lambda frames: [frames[0], framed(b"\xc1"), END], "not an event batch"),
        (lambda frames: [frames[0], damaged(frames[1]), *frames[2:]], "cannot be read"),
        (lambda frames: [frames[0], *frames[2:]], "sums"),
        (lambda frames: [*frames[:-2], END], "sums"),
        (headed(blocks=9), "sums"),
        (headed(totals=[[0, 8, 1]]), "sums"),
        (headed(totals=[[0, 7, 1]]), "sums"),
        (lambda frames: [frames[0], (1 << 20).to_bytes(4, "little"), b"x" * 99], "a frame of 1048576 bytes"),
    ],
)
async def test_anything_else_is_an_error(server: SnapshotServer, change: Change, reason: str) -> None:
    server.change = change
    with pytest.raises(SnapshotError, match=reason):
        await fetched(server)


@pytest.mark.parametrize("status", [301, 404, 429, 503])
async def test_a_refusal_is_an_error(server: SnapshotServer, status: int) -> None:
    server.status = status
    with pytest.raises(SnapshotError, match=str(status)):
        await fetched(server)


async def test_a_wrong_key_is_an_error(server: SnapshotServer) -> None:
    with pytest.raises(SnapshotError, match="403"):
        await fetched(server, key="other")


async def test_an_engine_that_is_gone_or_silent_is_an_error(server: SnapshotServer) -> None:
    left = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()
        left.set()

    listener = await asyncio.start_server(mute, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    with pytest.raises(SnapshotError, match="Timeout"):
        await fetched(server, limits=HASTY)
    await left.wait()
    listener.close()
    with pytest.raises(SnapshotError, match="ClientConnectorError"):
        await fetched(server)
