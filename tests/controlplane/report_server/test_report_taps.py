"""Deltas of live streams are applied by native code on the server's threads; all else goes to Python."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.frame_ingest import DeltaFrame
from cachefleet_controlplane.report_server.report_limits import CLOSE_CODES
from cachefleet_controlplane.report_streams.report_stream import StreamEvent
from cachefleet_core.block_keys import BlockKey, Tier, pack_keys
from cachefleet_core.report_frames import Cleared, Delta, Operation, Removed, Resync, State, Stored, decode_down, encode
from tests.controlplane.chains import chain, digest_of, removed, stored
from tests.controlplane.fleets import fleet_of, wid
from tests.controlplane.frames import delta, hello, snapshot, state
from tests.controlplane.report_server.agents import Agent, Endpoint, reports_endpoint
from tests.controlplane.waiting import until, value

KEYS = chain(1, 40)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with reports_endpoint() as made:
        yield made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of Deltas that come to Python."""
    numbers: list[int] = []
    receive = Fleet.receive

    def noting(self: Fleet, connection: Any, frame: Any, *place: Any) -> Any:
        if isinstance(frame, DeltaFrame):
            numbers.append(frame.sequence)
        return receive(self, connection, frame, *place)

    monkeypatch.setattr(Fleet, "receive", noting)
    return numbers


async def live(endpoint: Endpoint, agent: Agent, held: list[BlockKey], **said: Any) -> None:
    """A stream that is live with these blocks, at number 0."""
    await agent.say(hello(**said), snapshot(0, *([held] if held else [])), state(0, [(key, 0) for key in held]))
    worker = said.get("worker", "demo-0")
    await until(
        lambda: endpoint.fleet.worker(worker).stream == "live" and endpoint.fleet.worker(worker).load is not None
    )


def holds(endpoint: Endpoint, keys: list[BlockKey], worker: str = "demo-0") -> bool:
    index = endpoint.fleet._index
    return index.digest(wid(worker)) == digest_of((key, Tier.DEVICE) for key in keys)


async def test_deltas_of_a_live_stream_do_not_come_to_python(endpoint: Endpoint, seen: list[int]) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        for number in range(1, 11):
            await agent.say(delta(number, stored(KEYS[9 + number : 10 + number], parent=KEYS[8 + number])))
        await until(lambda: holds(endpoint, KEYS[:20]))
        await agent.say(state(10, [(key, 0) for key in KEYS[:20]], running=7))
        await until(lambda: endpoint.fleet.worker().load.running == 7)  # type: ignore[union-attr]
        await agent.say(delta(11, removed(KEYS[19:20])))
        await until(lambda: holds(endpoint, KEYS[:19]))
    assert seen == []
    await until(lambda: value(endpoint.metrics, "report_frames_total", type="delta") == 11)
    assert value(endpoint.metrics, "report_divergence_total") == 0
    assert endpoint.fleet.worker().sequence == 11


def applied_meanwhile(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait for what native code does while the event loop, which runs all of Python, does nothing."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_a_state_that_python_has_not_read_does_not_hold_up_what_follows(
    endpoint: Endpoint, seen: list[int]
) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        for number in range(1, 5):
            now = [(key, 0) for key in KEYS[: 10 - number]]
            await agent.say(delta(number, removed(KEYS[10 - number : 11 - number])), state(number, now, running=number))
        await agent.say(delta(5, removed(KEYS[5:6])))
        applied_meanwhile(lambda: holds(endpoint, KEYS[:5]))
        await until(lambda: endpoint.fleet.worker().load.running == 4)  # type: ignore[union-attr]
        await agent.say(delta(6, removed(KEYS[4:5])), state(6, [(key, 0) for key in KEYS[:4]], running=6))
        await until(lambda: endpoint.fleet.worker().load.running == 6)  # type: ignore[union-attr]
        assert holds(endpoint, KEYS[:4])
        assert endpoint.fleet.worker().sequence == 6
    assert seen == []
    assert set(endpoint.fleet._agents.events) <= {StreamEvent.EPOCH}, (
        "each State agreed with what was held where it came"
    )


async def test_a_state_that_differs_where_it_came_asks_for_a_snapshot_whatever_followed(endpoint: Endpoint) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        wrong = [(key, 0) for key in KEYS[:8]]
        await agent.say(delta(1, removed(KEYS[9:10])), state(1, wrong), delta(2, removed(KEYS[8:9])))
        applied_meanwhile(lambda: holds(endpoint, KEYS[:8]))  # as the State has it, but later
        assert isinstance(await agent.hear(), object)  # the policy
        assert await agent.hear() == Resync(reason="divergence")
        await agent.say(snapshot(2, KEYS[:8]), delta(3, removed(KEYS[7:8])))
        await until(lambda: holds(endpoint, KEYS[:7]))
    assert value(endpoint.metrics, "report_divergence_total") == 1


async def test_of_states_that_wait_for_python_the_last_of_each_rank_counts(endpoint: Endpoint) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        await agent.say(*(state(0, [(key, 0) for key in KEYS[:10]], running=running) for running in range(40)))
        await until(lambda: endpoint.fleet.worker().load.running == 39)  # type: ignore[union-attr]


async def test_a_malformed_state_ends_the_connection(endpoint: Endpoint) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        frame = encode(state(0, [(key, 0) for key in KEYS[:10]]))
        await agent.ws.send_bytes(frame.replace(b"running", b"runninG"))
        assert await agent.end() == 4400
    assert value(endpoint.metrics, "report_frames_malformed_total", reason="frame") == 1


async def test_who_sends_states_alone_is_not_silent() -> None:
    async with reports_endpoint(idle_seconds=2) as endpoint, endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        for running in range(25):
            await agent.say(state(0, [(key, 0) for key in KEYS[:10]], running=running))
            await asyncio.sleep(0.1)
        assert endpoint.fleet.worker().load.running == 24  # type: ignore[union-attr]
        assert await agent.end() == CLOSE_CODES["silent"]


async def test_a_gap_is_noticed_and_healed(endpoint: Endpoint, seen: list[int]) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        await agent.say(delta(1, removed(KEYS[9:10])), delta(3, removed(KEYS[8:9])))
        assert isinstance(await agent.hear(), object)  # the policy
        asked = await agent.hear()
        assert asked == Resync(reason="gap")
        assert holds(endpoint, KEYS[:9])
        await agent.say(snapshot(3, KEYS[:8]), delta(4, removed(KEYS[7:8])))
        await until(lambda: holds(endpoint, KEYS[:7]))
    assert 3 in seen


async def test_a_malformed_delta_ends_the_connection_and_changes_nothing(endpoint: Endpoint) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        await agent.say(delta(1, removed(KEYS[9:10])), delta(2, Stored(0, pack_keys([5, 5]))))
        assert await agent.end() == 4400
    assert holds(endpoint, KEYS[:9])
    assert value(endpoint.metrics, "report_frames_malformed_total", reason="frame") == 1


async def test_who_claims_more_than_it_can_hold_is_left_out(endpoint: Endpoint) -> None:
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10], blocks_total=12)
        for number in range(1, 11):
            await agent.say(delta(number, stored(chain(100 + number, 1))))
        await until(lambda: endpoint.fleet.view().index.excess_claims == 1)
        await until(lambda: not endpoint.fleet.worker().indexed)
        await agent.say(delta(11, stored(chain(200, 1))))
        await agent.say(state(11, running=3))
        await until(lambda: endpoint.fleet.worker().load.running == 3)  # type: ignore[union-attr]
    assert endpoint.fleet.worker().held_blocks == 0


async def test_a_newer_connection_takes_the_stream_over(endpoint: Endpoint) -> None:
    async with endpoint.agent() as older, endpoint.agent() as newer:
        await live(endpoint, older, KEYS[:10])
        await newer.say(hello(epoch="e2"), snapshot(0, KEYS[20:30]), state(0, [(key, 0) for key in KEYS[20:30]]))
        await until(lambda: holds(endpoint, KEYS[20:30]))
        assert await older.end() == 4409
        await newer.say(delta(1, removed(KEYS[29:30])))
        await until(lambda: holds(endpoint, KEYS[20:29]))


async def test_what_was_removed_while_a_request_is_in_flight_is_known(endpoint: Endpoint) -> None:
    fleet = endpoint.fleet
    async with endpoint.agent() as agent:
        await live(endpoint, agent, KEYS[:10])
        worker = next(worker for worker in fleet._registry.workers() if worker.name == "demo-0")
        since = fleet.losses.now()
        with worker.row.begin(b"", 0, 1, 1, 1, 1, 0, since, lambda: None):
            await agent.say(delta(1, removed(KEYS[9:10])), delta(2, stored(KEYS[9:10], parent=KEYS[8])))
            await until(lambda: worker.live is not None and holds(endpoint, KEYS[:10]) and _at(worker, since) == 2)
            assert fleet.losses.evicted(worker.id, pack_keys(KEYS[:10]), since)
            assert not fleet.losses.evicted(worker.id, pack_keys(KEYS[:9]), since)


def _at(worker: Any, now: float) -> int | None:
    """The number of its last Delta; asking so gives the stream to Python and back."""
    number = worker.live.pause()
    if number is not None:
        worker.live.resume(number, (100, 1500), now)
    return number if number is None else int(number)


@dataclass
class Random:
    """An agent that now and then leaves a number out, says one twice, or clears; it answers Resyncs."""

    agent: Agent
    chance: random.Random
    keys: list[BlockKey]
    held: set[BlockKey] = field(default_factory=set)
    number: int = 0

    async def snap(self) -> None:
        await self.agent.say(snapshot(self.number, *([key] for key in sorted(self.held))))

    async def answer(self) -> None:
        """Answer what is asked until nobody asks."""
        async for message in self.agent.ws:
            if isinstance(decode_down(message.data), Resync):
                await self.snap()

    async def change(self) -> None:
        some = self.chance.sample(self.keys, self.chance.randint(1, 5))
        operations: list[Operation] = [Stored(0, pack_keys(some))] if self.chance.random() < 0.6 else []
        self.held |= {*some} if operations else set()
        if not operations:
            operations, self.held = [Removed(pack_keys(some))], self.held - {*some}
        if self.chance.random() < 0.05:
            operations, self.held = [Cleared()], set()
        self.number += 1
        frame = Delta(sequence=self.number, operations=tuple(operations))
        times = self.chance.choices((0, 1, 2), (1, 40, 2))[0]
        await self.agent.say(*[frame] * times)
        if self.chance.random() < 0.2:
            await self.agent.say(self.report())
        if self.chance.random() < 0.3:
            await asyncio.sleep(0.001)

    def report(self) -> State:
        return state(self.number, ((key, Tier.DEVICE) for key in self.held))


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_is_lost_or_said_twice_what_is_held_is_what_the_agent_says(seed: int) -> None:
    async with reports_endpoint(fleet_of("demo-0")) as endpoint, endpoint.agent() as agent:
        one = Random(agent, random.Random(seed), chain(seed, 60))
        await live(endpoint, agent, [])
        answering = asyncio.create_task(one.answer())
        for _ in range(300):
            await one.change()
        async with asyncio.timeout(120):
            while not holds(endpoint, list(one.held)):
                endpoint.fleet.now += 2  # a Resync without success is asked for again, later each time
                await agent.say(one.report())
                await asyncio.sleep(0.01)
        answering.cancel()
        assert value(endpoint.metrics, "report_divergence_total") == 0
