"""The sockets of an event stream against a publisher that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self
from unittest.mock import Mock

import pytest
import zmq
import zmq.asyncio

from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.vllm.endpoints import Endpoints
from cachefleet_worker.agent.engines.vllm.events.epoch import Limits
from cachefleet_worker.agent.engines.vllm.events.follower import Follower
from cachefleet_worker.agent.engines.vllm.events.snapshot_client import SnapshotClient
from cachefleet_worker.agent.engines.vllm.events.source import Source, SourceLimits
from cachefleet_worker.agent.metrics import AgentMetrics
from tests.controlplane.waiting import task
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.model import BLOCK_SIZE, CONTRACT, INDEX_KEY, Block, ModelEngine
from tests.worker.agent.snapshot_server import SnapshotServer

pytestmark = pytest.mark.usefixtures("hurried")

END = (-1).to_bytes(8, "big", signed=True)


@dataclass
class Publisher:
    """vLLM's two sockets, by hand. ``drop_replies`` are left out of the first answer; ``mute`` gives none."""

    connect_to: str = ""
    engine: ModelEngine = field(default_factory=ModelEngine)
    drop_replies: set[int] = field(default_factory=set)
    mute: bool = False
    requests: list[int] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        context = zmq.asyncio.Context.instance()
        self.pub, self.router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for each in (self.pub, self.router):
            each.linger = 0
        if self.connect_to:
            self.pub.connect(self.connect_to)
            self.events = self.connect_to
        else:
            self.events = f"tcp://127.0.0.1:{self.pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay = f"tcp://127.0.0.1:{self.router.bind_to_random_port('tcp://127.0.0.1')}"
        self._task = asyncio.create_task(self._answer())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self.pub.close()
        self.router.close()

    async def joined(self) -> None:
        """Somebody has subscribed: from here on nothing published is lost on its way."""
        async with asyncio.timeout(30):
            assert (await self.pub.recv())[:1] == b"\x01"

    async def publish(self, *, lose: bool = False) -> None:
        seq, payload = self.engine.publish()
        if not lose:
            await self.pub.send_multipart([b"topic", seq.to_bytes(8, "big"), payload])

    async def heartbeat(self) -> None:
        seq, payload = self.engine.heartbeat()
        await self.pub.send_multipart([b"topic", seq.to_bytes(8, "big"), payload])

    async def store(self, number: int, *, lose: bool = False) -> Block:
        block = Block((number, number))
        self.engine.store([block])
        await self.publish(lose=lose)
        return block

    async def _answer(self) -> None:
        while True:
            client, _, start = await self.router.recv_multipart()
            self.requests.append(int.from_bytes(start, "big"))
            if self.mute:
                continue
            for seq, payload in self.engine.replay(self.requests[-1]):
                if len(self.requests) > 1 or seq not in self.drop_replies:
                    await self.router.send_multipart([client, b"", b"topic", seq.to_bytes(8, "big"), payload])
            await self.router.send_multipart([client, b"", b"", END, b""])


class Followed:
    def __init__(self, endpoints: Endpoints, snapshots: SnapshotServer | None = None) -> None:
        self.metrics = AgentMetrics()
        self.residents = Residents(INDEX_KEY, CONTRACT, block_size=BLOCK_SIZE)
        self.restarts: list[str] = []
        limits = Limits(
            attempts=2,
            retry_seconds=0.05,
            probe_seconds=0.3,
            first_probe_seconds=0.1,
            restore_base_seconds=0.05,
            restore_retry_seconds=0.5,
        )
        client = SnapshotClient(snapshots.url, key="key") if snapshots else None
        self.source = Source(
            0,
            endpoints,
            Follower(replay=bool(endpoints.replay), snapshots=client is not None, boot="boot", limits=limits),
            self.residents,
            self.metrics,
            limits=SourceLimits(replay_timeout_seconds=0.3),
            changed=lambda: None,
            restarted=self.restarts.append,
            snapshots=client,
        )

    def count(self, what: str) -> float:
        labels = {"rank": "0", "what": what}
        return self.metrics.registry.get_sample_value("cachefleet_agent_stream_total", labels) or 0.0

    async def holds(self, *blocks: Block) -> None:
        wanted = {block.key for block in blocks}
        await ControlPlane().until(lambda: {b.key for b in self.residents._names.live.values()} == wanted)


@asynccontextmanager
async def followed(endpoints: Endpoints, snapshots: SnapshotServer | None = None) -> AsyncIterator[Followed]:
    one = Followed(endpoints, snapshots)
    async with task(one.source.run()):
        yield one


async def test_what_was_published_before_and_after_is_held() -> None:
    async with Publisher() as publisher:
        first = await publisher.store(1)
        async with followed(Endpoints(publisher.events, publisher.replay)) as one:
            await one.holds(first)
            second = await publisher.store(2)
            await one.holds(first, second)


async def test_replies_dropped_on_the_way_are_asked_for_again() -> None:
    async with Publisher() as publisher:
        blocks = [await publisher.store(number) for number in range(20)]
        publisher.drop_replies = {7, 8, 15}
        async with followed(Endpoints(publisher.events, publisher.replay)) as one:
            await one.holds(*blocks)
            assert publisher.requests[:2] == [0, 7]
            assert one.count("late_starts") == 0


async def test_a_silent_replay_socket_does_not_stop_the_stream() -> None:
    async with Publisher(mute=True) as publisher:
        await publisher.store(1)
        async with followed(Endpoints(publisher.events, publisher.replay)) as one:
            await publisher.joined()
            late = await publisher.store(2)
            await one.holds(late)
            assert one.count("replay_failures") >= 2


async def test_no_replay_socket_means_only_what_comes_live() -> None:
    async with Publisher() as publisher, followed(Endpoints(publisher.events, "")) as one:
        await publisher.joined()
        first = await publisher.store(1)
        await one.holds(first)
        await publisher.store(2, lose=True)
        third = await publisher.store(3)
        await one.holds(third)
        assert one.count("losses") == 1


async def test_garbage_is_counted_and_the_good_stream_goes_on() -> None:
    async with Publisher() as publisher, followed(Endpoints(publisher.events, publisher.replay)) as one:
        first = await publisher.store(1)
        await one.holds(first)
        for frames in ([b"x"], [b"", b"", b""], [b"", b"short", b"p"], [b"a", b"b", b"c", b"d"]):
            await publisher.pub.send_multipart(frames)
        second = await publisher.store(2)
        await one.holds(first, second)
        assert one.count("malformed_messages") == 4


async def test_a_batch_that_cannot_be_read_costs_what_was_held_and_nothing_after() -> None:
    async with Publisher() as publisher, followed(Endpoints(publisher.events, publisher.replay)) as one:
        first = await publisher.store(1)
        await one.holds(first)
        publisher.engine.publish()
        bad = publisher.engine.seq
        publisher.engine.buffer[-1] = (bad, b"\xc1")
        await publisher.pub.send_multipart([b"", bad.to_bytes(8, "big"), b"\xc1"])
        second = await publisher.store(2)
        await one.holds(second)
        assert one.count("malformed_batches") == 1


async def test_an_engine_that_connects_to_us_is_followed() -> None:
    port = take_ports({"events": 0})["events"]
    events = f"tcp://127.0.0.1:{port}"
    async with Publisher(connect_to=events) as publisher:
        first = await publisher.store(1)
        async with followed(Endpoints(events, publisher.replay, bind=True)) as one:
            await one.holds(first)
            await publisher.joined()
            second = await publisher.store(2)
            await one.holds(first, second)


@pytest.mark.parametrize("bind", [False, True])
async def test_the_end_of_the_process_is_seen_at_once(bind: bool) -> None:  # noqa: FBT001 (a parameter)
    port = take_ports({"events": 0})["events"]
    publisher = Publisher(connect_to=f"tcp://127.0.0.1:{port}" if bind else "")
    async with publisher, followed(Endpoints(publisher.events, publisher.replay, bind=bind)) as one:
        await publisher.joined()
        first = await publisher.store(1)
        await one.holds(first)
        publisher.pub.close()
        await ControlPlane().until(lambda: one.restarts == ["disconnected"])


async def test_what_breaks_in_a_replay_ends_the_source_so_that_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Publisher() as publisher:
        await publisher.store(1)
        one = Followed(Endpoints(publisher.events, publisher.replay))
        monkeypatch.setattr(one.residents, "apply", Mock(side_effect=KeyError("a defect")))
        with pytest.raises(ExceptionGroup) as broken:
            await asyncio.wait_for(one.source.run(), 40)
    assert broken.group_contains(KeyError)


@dataclass
class Rig:
    """An engine with the plugin and a replay buffer of two batches."""

    publisher: Publisher
    server: SnapshotServer

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self.publisher.events, self.publisher.replay)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    engine = ModelEngine(buffer_steps=2, plugin=True)
    async with Publisher(engine=engine) as publisher, SnapshotServer(engine) as server:
        yield Rig(publisher, server)


async def test_a_late_joiner_gets_everything(rig: Rig) -> None:
    blocks = [await rig.publisher.store(number) for number in range(20)]
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(*blocks)
        blocks.append(await rig.publisher.store(99))
        await one.holds(*blocks)
        assert one.count("losses") == one.count("late_starts") == 0


async def test_a_loss_beyond_replay_costs_nothing(rig: Rig) -> None:
    blocks = [await rig.publisher.store(0)]
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(*blocks)
        await rig.publisher.joined()
        blocks += [await rig.publisher.store(number, lose=number < 8) for number in range(1, 9)]
        await one.holds(*blocks)
        assert one.count("losses") == 0
        assert one.count("snapshots") >= 2


async def test_a_heartbeat_reveals_a_lost_tail(rig: Rig) -> None:
    async with followed(rig.endpoints, rig.server) as one:
        await rig.publisher.joined()
        blocks = [await rig.publisher.store(number, lose=True) for number in range(5)]
        assert one.residents.held == 0
        await rig.publisher.heartbeat()
        await one.holds(*blocks)


async def test_a_mark_that_differs_brings_a_snapshot(rig: Rig) -> None:
    block = await rig.publisher.store(1)
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(block)
        await rig.publisher.joined()
        one.residents.forget()
        await rig.publisher.heartbeat()
        await one.holds(block)
        assert one.count("divergences") == 1
        await rig.publisher.heartbeat()
        await asyncio.sleep(0.1)  # a second divergence would be counted by then
        assert one.count("divergences") == 1


async def test_a_mark_of_another_process_ends_the_epoch(rig: Rig) -> None:
    async with followed(rig.endpoints, rig.server) as one:
        await rig.publisher.joined()
        rig.publisher.engine.boot = "another"
        await rig.publisher.heartbeat()
        await ControlPlane().until(lambda: one.restarts == ["boot"])


async def test_a_snapshot_of_another_process_ends_the_epoch(rig: Rig) -> None:
    rig.publisher.engine.boot = "another"
    async with followed(rig.endpoints, rig.server) as one:
        await ControlPlane().until(lambda: one.restarts == ["boot"])
        assert one.residents.held == 0


async def test_a_batch_that_cannot_be_read_is_made_good(rig: Rig) -> None:
    block = await rig.publisher.store(1)
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(block)
        await rig.publisher.joined()
        other = await rig.publisher.store(2, lose=True)
        bad = rig.publisher.engine.seq
        await rig.publisher.pub.send_multipart([b"", bad.to_bytes(8, "big"), b"\xc1"])
        await one.holds(block, other)
        assert one.count("malformed_batches") == 1


async def test_without_snapshots_for_a_while_the_replay_is_followed_and_then_all_is_whole(rig: Rig) -> None:
    blocks = [await rig.publisher.store(number) for number in range(5)]
    rig.server.status = 503
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(*blocks[-2:])
        assert one.count("snapshot_failures") == 2
        rig.server.status = 200
        await one.holds(*blocks)
        assert one.count("losses") == 0


async def test_a_broken_off_snapshot_changes_nothing(rig: Rig) -> None:
    blocks = [await rig.publisher.store(number) for number in range(5)]
    async with followed(rig.endpoints, rig.server) as one:
        await one.holds(*blocks)
        await rig.publisher.joined()
        rig.server.change = lambda frames: frames[:-1]
        taken = []
        one.source._changed = lambda: taken.append(one.residents.held)
        blocks += [await rig.publisher.store(number, lose=number < 9) for number in range(5, 10)]
        await ControlPlane().until(lambda: one.count("snapshot_failures"))
        rig.server.change = list
        await one.holds(*blocks)
        assert 0 not in taken
