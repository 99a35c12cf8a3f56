"""Many followers of one engine that all lose the same events: row 8."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints
from tests.chaos.measurements import measured, timed
from tests.worker.agent.engines.vllm.events.test_source import Publisher, followed

FOLLOWERS = 50


async def test_fifty_followers_that_lose_the_same_events() -> None:
    """Each asks for what it lacks once, and for no more than that; the engine's own stream goes on."""
    async with Publisher() as publisher, AsyncExitStack() as stack:
        blocks = [await publisher.store(number) for number in range(200)]
        endpoints = Endpoints(publisher.events, publisher.replay)
        followers = [await stack.enter_async_context(followed(endpoints)) for _ in range(FOLLOWERS)]
        for follower in followers:
            await follower.holds(*blocks)
        assert Counter(publisher.requests) == {0: FOLLOWERS}
        publisher.requests.clear()
        blocks += [await publisher.store(number, lose=True) for number in range(200, 220)]
        with timed(8, "50 followers whole again after they lost the same 20 events", at_most=10):
            blocks.append(await publisher.store(220))
            for follower in followers:
                await follower.holds(*blocks)
        measured(8, "replays asked for by each", len(publisher.requests) / FOLLOWERS, unit="", at_most=2)
        assert set(publisher.requests) == {200}, "nobody asks for what it has"
