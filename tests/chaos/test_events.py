"""Events of an engine that get lost, come from another process, or are none: rows 2, 4, 5 and 7."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from cachefleet_worker.agent.settings import AgentSettings
from tests.chaos.measurements import measured, timed
from tests.chaos.parts.followed_engine import Followed, followed_engine
from tests.controlplane.waiting import until

Make = Callable[..., AgentSettings]
MIB = 1024 * 1024


async def test_a_restart_that_goes_on_above_the_last_number(tmp_path: Path, make_settings: Make) -> None:
    async with followed_engine(tmp_path, make_settings) as one:
        await one.ask(20)
        await until(one.agreed)
        (epoch,) = {worker.epoch for worker in one.fleet.view().workers}
        await one.engine.restart()
        one.engine.worker.publisher.sequence = 1000
        with timed(2, "index exact after a restart that goes on above the last number", at_most=10):
            await one.ask(3)
            await until(lambda: {worker.epoch for worker in one.fleet.view().workers} != {epoch} and one.agreed())


@pytest.mark.parametrize("frames", [1, 17, 500])
async def test_a_gap_within_the_replay(tmp_path: Path, make_settings: Make, frames: int) -> None:
    async with followed_engine(tmp_path, make_settings) as one:
        one.engine.worker.publisher.drop(frames)
        await one.ask(frames)
        assert not one.agreed()
        assert one.is_sound()
        await one.ask()  # by this one the gap shows
        held = one.held
        with timed(4, f"index exact after {frames} lost frames", at_most=1):
            await until(lambda: one.indexed == held)
        await until(one.agreed)


async def test_a_gap_beyond_the_replay(tmp_path: Path, make_settings: Make) -> None:
    """Without snapshots, too, what remains is no less than what came after, and nothing that is not there."""
    async with followed_engine(tmp_path, make_settings, buffer_steps=50) as one:
        one.engine.worker.publisher.drop(500, lose=True)
        await one.ask(500)
        await one.ask(40)
        with timed(5, "the suffix in the index, where 500 frames are lost for good", at_most=5):
            await until(lambda: 80 <= one.indexed <= 200)
        await until(one.is_sound)
        before = one.indexed
        await one.ask(5)  # it is not wedged
        await until(lambda: one.indexed == before + 10 and one.is_sound())


@pytest.mark.parametrize("count", [2_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
async def test_frames_that_are_none(tmp_path: Path, make_settings: Make, count: int) -> None:
    """Each is counted, costs nothing, and the good ones between them are read."""
    chance, process = random.Random(7), psutil.Process()
    async with followed_engine(tmp_path, make_settings) as one:
        for _ in range(4):
            await _send(one, [_random(chance) for _ in range(250)])  # allocators are warm by then
        memory, counted = process.memory_info().rss, _malformed(one)
        for _ in range(count // 250):
            await _send(one, [_random(chance) for _ in range(250)])
            await one.ask()
        assert _malformed(one) - counted == count // 250 * 250
        await until(one.agreed)
        growth = (process.memory_info().rss - memory) / MIB
        measured(7, f"memory after {count} random frames", growth, unit="MiB", at_most=20)


def _random(chance: random.Random) -> list[bytes]:
    """Frames that are no message: a wrong number of them, or a sequence number that is none."""
    parts = chance.choice((1, 2, 4, 5, 3))
    sizes = [chance.randrange(60) for _ in range(parts)]
    if parts == 3:
        sizes[1] = chance.choice((0, 1, 7, 9, 20))
    return [chance.randbytes(size) for size in sizes]


async def _send(one: Followed, messages: Sequence[list[bytes]]) -> None:
    """As the engine would, and wait until all were counted: the socket drops what is too much for it."""
    publisher, before = one.engine.worker.publisher._pub, _malformed(one)
    assert publisher is not None
    for frames in messages:
        publisher.send_multipart(frames)
    await until(lambda: _malformed(one) == before + len(messages))


def _malformed(one: Followed) -> float:
    labels = {"rank": "0", "what": "malformed_messages"}
    return one.agent.metrics.registry.get_sample_value("cachefleet_agent_stream_total", labels) or 0.0
