"""Agents that lie: whoever reports is held to its name, its worker's size, its epoch and its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from cachefleet_controlplane.exposition import exposition
from cachefleet_core.report_frames import PATH, SUBPROTOCOL, UpFrame, encode
from tests.attacks.target import ADMIN, AGENT, Target
from tests.controlplane.chains import chain, stored
from tests.controlplane.frames import CONTRACT, delta, hello, snapshot, state
from tests.controlplane.waiting import until

KEYS = chain(1, 10)


@asynccontextmanager
async def reporting(target: Target, token: str = AGENT) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    url = target.plane.internal + PATH
    async with aiohttp.ClientSession() as http, http.ws_connect(url, headers=headers, protocols=(SUBPROTOCOL,)) as ws:
        yield ws


async def say(ws: aiohttp.ClientWebSocketResponse, *frames: UpFrame) -> None:
    for frame in frames:
        await ws.send_bytes(encode(frame))


def held(target: Target) -> int:
    (worker,) = [one for one in target.plane.plane.fleet.view().workers if one.name == "demo-0"]
    return worker.held_blocks


async def ended(ws: aiohttp.ClientWebSocketResponse) -> int | None:
    async with asyncio.timeout(30):
        async for _ in ws:
            pass
    return ws.close_code


@pytest.mark.parametrize("token", ["", "wrong", ADMIN])
async def test_nobody_without_an_agents_token_gets_a_connection(target: Target, token: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with reporting(target, token):
            pass
    assert refused.value.status in {401, 403}


async def test_a_worker_that_is_not_listed_sets_no_contract(target: Target) -> None:
    own = msgspec.structs.replace(CONTRACT, weights="fake")
    other = msgspec.structs.replace(own, block_size=32)
    async with reporting(target) as liar, reporting(target) as ws:
        await say(liar, hello("ghost-0", contract=other), snapshot(0, chain(9, 10)), state())
        await until(lambda: len(target.plane.plane.fleet.view().workers) == 2)
        await say(ws, hello("demo-0", contract=own), snapshot(0, KEYS))
        await until(lambda: held(target) == 10)
    (worker,) = [one for one in target.plane.plane.fleet.view().workers if one.name == "demo-0"]
    assert (worker.excluded, worker.differences) == (False, ())


async def test_frames_of_an_older_stream_played_again_are_not_taken(target: Target) -> None:
    old = delta(1, stored(chain(5, 10)))
    async with reporting(target) as ws:
        await say(ws, hello(epoch="e1"), snapshot(0), old)
        await until(lambda: held(target) == 10)
    async with reporting(target) as ws:
        await say(ws, hello(epoch="e2"), snapshot(0, KEYS[:3]), delta(1, stored(KEYS[3:4], parent=KEYS[2])))
        await until(lambda: held(target) == 4)
        await say(ws, old, delta(2, stored(KEYS[4:5], parent=KEYS[3])))
        await until(lambda: held(target) == 5)
    assert held(target) == 5


async def test_more_blocks_than_the_worker_has_are_not_believed(target: Target) -> None:
    async with reporting(target) as ws:
        await say(ws, hello(blocks_total=100), snapshot(0, chain(1, 5000)))
        await say(ws, state(0, [(key, 0) for key in chain(1, 5000)]))
        await until(lambda: b"report" in _page(target))
        assert held(target) <= 100


def _page(target: Target) -> bytes:
    return exposition(target.plane.plane.metrics.registry)[0]


GARBAGE: dict[str, Any] = {
    "nothing": b"",
    "no frame": b"\xff" * 1000,
    "deep": b"\x91" * 100_000,
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "a string of four billion": b"\xdb\xff\xff\xff\xff",
    "large": b"\xc1" * (1024 * 1024),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("introduced", ["", "hello"])
async def test_what_is_no_frame_ends_the_connection(target: Target, name: str, introduced: str) -> None:
    async with reporting(target) as ws:
        if introduced:
            await say(ws, hello())
        await ws.send_bytes(GARBAGE[name])
        assert await ended(ws) in {4400, 1009, 1002, 1006}
    assert held(target) == 0
