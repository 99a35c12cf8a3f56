"""Clients that hold connections: idle, dripping, half-closed. Others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.attacks.target import CHAT, Target, attacked
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import BOUNDS

HEAD = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n".encode()
Writers = list[asyncio.StreamWriter]


@asynccontextmanager
async def connections(port: int, number: int, first: bytes = b"") -> AsyncIterator[Writers]:
    writers: Writers = []
    try:
        for _ in range(number):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            writers.append(writer)
        yield writers
    finally:
        for writer in writers:
            writer.transport.abort()


async def drip(writers: Writers, data: bytes) -> None:
    """A byte each, again and again."""
    for byte in data * 1000:
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                writer.write(bytes([byte]))
        await asyncio.sleep(0.02)  # a client's own slowness


@pytest.mark.parametrize(
    ("idle", "dripping"), [(100, 20), pytest.param(2000, 200, marks=pytest.mark.slow)], ids=["some", "many"]
)
async def test_idle_and_dripping_clients_hold_up_nobody(tmp_path: Path, idle: int, dripping: int) -> None:
    async with attacked(tmp_path) as target, contextlib.AsyncExitStack() as stack:
        for port in (target.gateway, target.internal):
            await stack.enter_async_context(connections(port, idle // 2))
            heads = await stack.enter_async_context(connections(port, dripping // 4, HEAD))
            bodies = await stack.enter_async_context(connections(port, dripping // 4, HEAD + b"\r\n{"))
            for writers, data in ((heads, b"a: b\r\n"), (bodies, b" ")):
                dripper = asyncio.create_task(drip(writers, data))
                stack.callback(dripper.cancel)
        for _ in range(5):
            assert (await target.chat())[0] == 200
            await target.lives()


async def test_who_drips_is_closed_and_its_place_is_free_again(tmp_path: Path) -> None:
    bounds = replace(BOUNDS, head_seconds=0.5, stall_seconds=0.3)
    async with (
        attacked(tmp_path, upstream_connections=4, request_body_seconds=0.5, bounds=bounds) as target,
        connections(target.gateway, 4, HEAD + b"\r\n{"),
    ):
        await until(lambda: target.plane.plane.gateway.under_way == 4)
        await until(lambda: target.plane.plane.gateway.under_way == 0)
        assert (await target.chat())[0] == 200


async def test_clients_that_leave_at_once_leave_nothing_behind(target: Target) -> None:
    body = b'{"messages":[{"role":"user","content":"x"}],"stream":true,"max_tokens":50}'
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for _ in range(20):
        async with connections(target.gateway, 1, head + body):
            pass
    await until(lambda: target.plane.plane.gateway.under_way == 0)
    await until(lambda: not target.worker.worker.scheduler.running)
    assert target.plane.plane.gateway.bodies.held_bytes == 0
