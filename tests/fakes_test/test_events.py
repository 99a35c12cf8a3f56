"""The fake's events on the wire: frames, replay, encodings, faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq

from tests.fakes.engine import FakeEngine
from tests.fakes.options import EngineOptions

pytestmark = pytest.mark.usefixtures("hurried")

Message = tuple[int, list[Any]]
END = b"\xff" * 8


@asynccontextmanager
async def subscribed(engine: FakeEngine) -> AsyncIterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.LINGER, 0)
        met = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        subscriber.subscribe(engine.options.topic.encode())
        subscriber.connect(engine.events_endpoint)
        with met:
            assert await asyncio.to_thread(met.poll, 30_000)
            subscriber.disable_monitor()
        await asyncio.sleep(0.1)  # the publisher takes the subscription over after the handshake
        yield subscriber


async def received(subscriber: zmq.Socket[bytes], *, least: int = 1, wait: float = 0.15) -> list[Message]:
    """What comes: so many messages however long they take, and what comes in the ``wait`` seconds after them."""
    messages: list[Message] = []
    async with asyncio.timeout(1500):  # of the hurried loop; other threads send
        while len(messages) < least:
            await asyncio.sleep(0.005)
            messages += _waiting(subscriber)
    await asyncio.sleep(wait)
    return messages + _waiting(subscriber)


def _waiting(subscriber: zmq.Socket[bytes]) -> list[Message]:
    messages = []
    while subscriber.poll(0):
        _, sequence, payload = subscriber.recv_multipart()
        messages.append((int.from_bytes(sequence, "big"), msgspec.msgpack.decode(payload)))
    return messages


async def replayed(engine: FakeEngine, start: int = 0) -> list[int]:
    def ask() -> list[int]:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(engine.replay_endpoint)
            dealer.send_multipart([b"", start.to_bytes(8, "big")])
            out: list[int] = []
            while dealer.poll(5000):
                _, _, sequence, _ = dealer.recv_multipart()
                if sequence == END:
                    return out
                out.append(int.from_bytes(sequence, "big"))
            raise TimeoutError

    return await asyncio.to_thread(ask)


async def store(session: aiohttp.ClientSession, engine: FakeEngine, *seeds: int) -> None:
    """One batch of events for each seed."""
    for seed in seeds:
        body = {"prompt": [seed + 1] * 32, "max_tokens": 1}
        async with session.post(f"{engine.url}/v1/completions", json=body) as response:
            assert response.status == 200


async def test_batches_are_numbered_from_0_and_again_after_a_restart(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(topic="kv") as engine, subscribed(engine) as subscriber:
        await store(session, engine, 1, 2)
        assert [sequence for sequence, _ in await received(subscriber, least=2)] == [0, 1]
        await engine.restart()
        live: list[Message] = []
        sent = 0
        while not live and sent < 100:  # the first are gone before the subscriber has found its way back
            await store(session, engine, sent)
            sent += 1
            live = await received(subscriber, least=0, wait=0.02)
        assert [sequence for sequence, _ in live] == list(range(sent - len(live), sent))
        assert await replayed(engine) == list(range(sent))


async def test_dropped_batches_can_be_replayed_and_lost_ones_cannot(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine, subscribed(engine) as subscriber:
        engine.drop_events(2)
        await store(session, engine, 1, 2, 3)
        assert [sequence for sequence, _ in await received(subscriber)] == [2]
        engine.drop_events(1, lose=True)
        await store(session, engine, 4, 5)
        assert [sequence for sequence, _ in await received(subscriber)] == [4]
        assert await replayed(engine) == [0, 1, 2, 4]
        assert await replayed(engine, 3) == [4]
        assert await replayed(engine, 5) == []


async def test_the_replay_buffer_is_bounded(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(buffer_steps=2) as engine:
        await store(session, engine, *range(5))
        assert await replayed(engine) == [3, 4]


async def test_slow_events_come_late_and_in_order(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine, subscribed(engine) as subscriber:
        engine.slow_events(2)
        await store(session, engine, 1, 2)
        engine.slow_events(0)
        await store(session, engine, 3)
        assert await received(subscriber, least=0, wait=0.05) == []
        assert [sequence for sequence, _ in await received(subscriber, least=3)] == [0, 1, 2]


async def test_a_hung_engine_replays_when_it_resumes(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        await store(session, engine, 1)
        engine.hang()
        task = asyncio.create_task(replayed(engine))
        await asyncio.sleep(0.1)  # an engine that does not hang has answered by then
        assert not task.done()
        engine.resume()
        assert await task == [0]


async def test_maps_name_their_fields_and_leave_out_empty_ones(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(num_blocks=4, block_size=16, rank=3) as engine, subscribed(engine) as subscriber:
        await store(session, engine, 1, 2)
        (_, first), (_, second) = await received(subscriber, least=2)
        assert first[2] == 3
        assert list(first[1][0]) == [
            *("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium"),
            *("lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"),
        ]
        removed = second[1][0]
        assert removed == {"type": "BlockRemoved", "block_hashes": [first[1][0]["block_hashes"][1]]} | {
            "medium": "GPU",
            "group_idx": 0,
        }


@pytest.mark.parametrize("as_int", [True, False])
async def test_arrays_start_with_the_tag(session: aiohttp.ClientSession, *, as_int: bool) -> None:
    options = EngineOptions(num_blocks=4, event_maps=False, event_int_hashes=as_int)
    async with FakeEngine(options) as engine, subscribed(engine) as subscriber:
        await store(session, engine, 1, 2)
        (_, first), (_, second) = await received(subscriber, least=2)
        hashes = first[1][0][1]
        rest = [None, [2] * 32, 16, None, "GPU", None, [None, None], 0, "full_attention"]
        assert first[1][0] == ["BlockStored", hashes, *rest]
        assert second[1][0] == ["BlockRemoved", [hashes[1]], "GPU", 0]
        assert all(isinstance(one, int) == as_int for one in hashes)
        assert as_int or all(len(one) == 32 for one in hashes)
