from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cachefleet_core.report_frames import Drain, Hello, Phase, Policy, Resync, Snapshot, Warm
from cachefleet_local.fleet.ports import take_ports
from cachefleet_worker.agent.load_meter import Load
from cachefleet_worker.agent.metrics import AgentMetrics
from cachefleet_worker.agent.reports import uplink as uplink_module
from cachefleet_worker.agent.reports.feed import Feed
from cachefleet_worker.agent.reports.stream import Stream, WorkerState
from cachefleet_worker.agent.reports.targets import Registration, Target, resolve, static_targets
from cachefleet_worker.agent.reports.uplink import Uplink
from cachefleet_worker.agent.settings import AgentSettings
from tests.controlplane.waiting import task, until
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.reports.test_stream import make_stream, store

pytestmark = pytest.mark.usefixtures("hurried")

Make = Callable[..., AgentSettings]


class Commands:
    def __init__(self) -> None:
        self.got: list[Policy | Warm | Drain] = []

    def policy(self, policy: Policy) -> None:
        self.got.append(policy)

    def warm(self, warm: Warm) -> None:
        self.got.append(warm)

    def drain(self, drain: Drain) -> None:
        self.got.append(drain)


class Side:
    """A worker's side without an engine: one stream, one feed, the uplink."""

    def __init__(self, settings: AgentSettings, http: aiohttp.ClientSession, **options: Any) -> None:
        self.metrics = AgentMetrics()
        self.feed = Feed(self.metrics)
        self.commands = Commands()
        self.stream: Stream = make_stream()
        self.feed.begin({0: self.stream}, lambda _rank: WorkerState(Phase.READY, Load()))
        self.registration = Registration(wanted=True)
        self.uplink = Uplink(
            settings, self.feed, self.commands, self.metrics, registration=self.registration, http=http, **options
        )

    def store(self, number: int, blocks: int = 1) -> None:
        store(self.stream, number, blocks)
        self.feed.publish_state()

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"cachefleet_agent_{name}", labels) or 0.0


@asynccontextmanager
async def side(settings: AgentSettings, **options: Any) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession() as http:
        one = Side(settings, http, **options)
        async with task(one.uplink.run()):
            yield one


async def test_everything_reaches_every_control_plane(make_settings: Make, plane: ControlPlane) -> None:
    async with ControlPlane() as other, side(make_settings(control_planes=f"{plane.url},{other.url}")) as one:
        store(one.stream, 1)
        for each in (plane, other):
            await each.until(lambda each=each: each.state)  # type: ignore[misc] # the loop's own value
        one.store(2)
        for each in (plane, other):
            await each.until(lambda each=each: len(each.receiver.keys) == 2)  # type: ignore[misc] # as above
        assert one.uplink.connected == 2
        await plane.until(lambda: one.registration.registered)
    assert one.uplink.connected == 0


async def test_a_lost_control_plane_is_found_again_and_told_everything(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with side(make_settings(control_planes=plane.url)) as one:
        await plane.until(lambda: plane.state)
        one.store(1)
        await plane.close(1012)
        one.store(2)
        await plane.until(lambda: plane.connects == 2 and len(plane.receiver.keys) == 2)


async def test_a_control_plane_may_come_later(make_settings: Make, caplog: pytest.LogCaptureFixture) -> None:
    port = take_ports({"control plane": 0})["control plane"]
    async with side(make_settings(control_planes=f"ws://127.0.0.1:{port}")) as one:
        await ControlPlane().until(lambda: one.metric("connects_total", outcome="failed") >= 2)
        assert not one.registration.registered
        async with ControlPlane(port) as plane:
            await plane.until(lambda: plane.state)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.count("control plane not reached") == 1


async def test_the_token_is_read_again_at_each_attempt(make_settings: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with ControlPlane(token="new") as plane, side(make_settings(control_planes=plane.url, token_file=token)):
        await plane.until(lambda: plane.refused >= 2)
        token.write_text("new\n")
        await plane.until(lambda: plane.state)


async def test_a_missing_token_file_is_retried(make_settings: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    async with ControlPlane(token="t") as plane, side(make_settings(control_planes=plane.url, token_file=token)):
        await asyncio.sleep(0.1)  # several tries without a token
        assert plane.connects == 0
        token.write_text("t")
        await plane.until(lambda: plane.state)


async def test_commands_are_passed_on_and_nonsense_is_counted(make_settings: Make, plane: ControlPlane) -> None:
    async with side(make_settings(control_planes=plane.url)) as one:
        await plane.until(lambda: plane.state)
        policy = Policy(pool="default/demo", generation=4)
        await plane.send_bytes(b"\xc1nonsense")
        await plane.send_bytes(b"\x81\xa4type\xa2\xff\xfe")
        await plane.send(policy)
        await plane.send(Drain(seconds=3.0))
        await plane.send(Warm(prefixes=()))
        await plane.until(lambda: len(one.commands.got) == 3)
        assert one.commands.got == [policy, Drain(seconds=3.0), Warm(prefixes=())]
        assert one.metric("refused_frames_total") == 2
        assert plane.connects == 1


async def test_a_resync_is_answered_with_a_snapshot(make_settings: Make, plane: ControlPlane) -> None:
    async with side(make_settings(control_planes=plane.url)) as one:
        await plane.until(lambda: plane.state)
        one.store(1)
        await plane.send(Resync(reason="divergence"))
        await plane.until(lambda: sum(isinstance(frame, Snapshot) for frame in plane.frames) == 2)
        assert isinstance(plane.frames[-1], Snapshot)
        assert plane.frames[-1].sequence == 1
        assert plane.connects == 1


async def test_a_slow_reader_gets_a_snapshot_instead_of_a_backlog(make_settings: Make, plane: ControlPlane) -> None:
    async with side(make_settings(control_planes=plane.url, send_queue_frames=8)) as one:
        await plane.until(lambda: plane.state)
        plane.read.clear()
        for number in range(3000):
            one.store(number, blocks=200)
            if number % 50 == 0:
                await asyncio.sleep(0)
            if one.metric("send_queue_overflows_total") >= 1:
                break
        plane.read.set()
        assert one.metric("send_queue_overflows_total") >= 1
        one.store(5000)
        await plane.until(lambda: plane.receiver.digest == one.stream.residents.digest, 20)
        assert sum(isinstance(frame, Hello) for frame in plane.frames) >= 2


async def test_a_refusal_by_close_code_is_not_hammered(make_settings: Make) -> None:
    settings = {"reconnect_base_seconds": 0.001, "reconnect_cap_seconds": 60.0}
    async with ControlPlane() as plane:
        plane.close_with = 1008
        async with side(make_settings(control_planes=plane.url, **settings)) as one:
            await asyncio.sleep(0.3)  # hundreds of first pauses
            assert plane.connects <= 2
            await asyncio.sleep(0.4)  # as long again: the refusal holds
            assert not one.registration.registered


async def test_one_that_restarts_at_its_address_is_told_soon(
    make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long nobody listened there; the longest delay is for one that answers and has no time."""
    monkeypatch.setattr(uplink_module, "_ABSENT_SECONDS", 0.02)
    settings = {"reconnect_base_seconds": 0.02, "reconnect_cap_seconds": 3600.0}
    port = take_ports({"control plane": 0})["control plane"]
    async with side(make_settings(control_planes=f"ws://127.0.0.1:{port}", **settings), jitter=lambda: 1.0) as one:
        await until(lambda: one.metric("connects_total", outcome="failed") >= 14)  # else the next would be in minutes
        async with ControlPlane(port) as plane:
            await plane.until(lambda: plane.state)


async def test_replicas_behind_a_name_are_followed(make_settings: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback has many addresses: two replicas, then one of them and a third, then no answer at all."""
    planes = [ControlPlane() for _ in range(3)]
    found: list[str] | None = []

    async def lookup(name: str, *, tls: bool) -> list[Target]:
        assert (name, tls) == ("planes:1", False)
        if found is None:
            raise OSError("no answer")
        return [Target(f"{url}/v1/reports", "planes") for url in found]

    monkeypatch.setattr(uplink_module, "resolve", lookup)
    async with planes[0], planes[1], planes[2]:
        found = [planes[0].url, planes[1].url]
        async with side(make_settings(control_plane_dns="planes:1")) as one:
            await planes[0].until(lambda: planes[0].state and planes[1].state)
            found = [planes[1].url, planes[2].url]
            await planes[2].until(lambda: planes[2].state and one.uplink.connected == 2)
            found = None
            await asyncio.sleep(0.25)  # several look-ups that fail
            assert one.uplink.connected == 2
            assert [plane.connects for plane in planes] == [1, 1, 1]


async def test_a_name_becomes_targets() -> None:
    assert await resolve("127.0.0.1:8081", tls=False) == [Target("ws://127.0.0.1:8081/v1/reports", "127.0.0.1")]
    assert await resolve("[::1]:8081", tls=True) == [Target("wss://[::1]:8081/v1/reports", "::1")]


def test_listed_urls_get_the_path_of_the_protocol() -> None:
    assert static_targets(("ws://a:1", "ws://b:2/", "ws://c:3/x")) == [
        Target("ws://a:1/v1/reports"),
        Target("ws://b:2/v1/reports"),
        Target("ws://c:3/x"),
    ]
