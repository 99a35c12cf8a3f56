"""A replica that starts is ready once it knows what the ready workers hold, and does not wait for ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.fleet.startup_readiness import MAX_SHOWN, StartupReadiness
from cachefleet_core.report_frames import Phase
from tests.controlplane.fleets import FakeLink, LiveFleet, pool, view
from tests.controlplane.frames import hello, sent, snapshot, state
from tests.controlplane.gateway.harness import engine
from tests.controlplane.hot_prefixes.test_new_worker_warmup import agent, worker_settings
from tests.controlplane.waiting import until
from tests.controlplane.wiring.test_control_plane import running

pytestmark = pytest.mark.usefixtures("hurried")

__all__ = ["worker_settings"]

WORKERS = ["demo-0", "demo-1"]


class Start:
    """A replica that has just learnt of its pools."""

    def __init__(self, workers: list[str], *, ready: bool = True) -> None:
        self.now = 100.0
        self.fleet = LiveFleet()
        self.startup_readiness = StartupReadiness(seconds=15, clock=lambda: self.now)
        self.fleet.update_pools([view(pool(), workers) if ready else view(pool(), (), workers)])

    @property
    def waited_for(self) -> list[str]:
        return self.startup_readiness.awaited(self.fleet.ready_workers)

    def hear(self, name: str) -> None:
        connection = self.fleet.connect(FakeLink())
        self.fleet.hello(connection, hello(name))
        self.fleet.receive(connection, sent(snapshot(0)))
        self.fleet.receive(connection, state(0, held=0, digest=0, phase=Phase.READY))


def test_every_ready_worker_is_waited_for() -> None:
    start = Start(WORKERS)
    start.startup_readiness.begin()
    assert start.waited_for == ["default/demo/demo-0", "default/demo/demo-1"]
    start.hear("demo-1")
    assert start.waited_for == ["default/demo/demo-0"]
    start.hear("demo-0")
    assert start.waited_for == []


@pytest.mark.parametrize("start", [Start([]), Start(WORKERS, ready=False)], ids=["no workers", "none ready"])
def test_nobody_is_waited_for_where_nobody_is_ready(start: Start) -> None:
    start.startup_readiness.begin()
    assert start.waited_for == []


def test_it_ends_by_time_and_stays_over() -> None:
    start = Start(WORKERS)
    start.startup_readiness.begin()
    start.now += 14.9
    start.startup_readiness.begin()  # another picture of the pools begins nothing anew
    assert start.waited_for
    start.now += 0.1
    assert start.waited_for == []
    start.fleet.update_pools([view(pool(), [*WORKERS, "demo-2"])])
    assert start.waited_for == []


def test_few_are_named() -> None:
    start = Start([f"demo-{number}" for number in range(100)])
    start.startup_readiness.begin()
    assert len(start.waited_for) == MAX_SHOWN


async def test_the_first_request_of_a_replica_goes_by_what_workers_hold(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    text = [{"role": "user", "content": "a prompt of several blocks, " * 20}]
    async with engine(plugin=True) as worker, running(tmp_path, worker, ready=False, startup_seconds=300) as made:
        assert (await made.chat(messages=text))[0] == 200  # whoever comes all the same is served
        await until(made.plane.fleet.informed.is_set)
        status, body = await made.get("/readyz")
        assert (status, json.loads(body)["agents"]) == (503, {"awaited": ["default/demo/demo-0"]})
        async with agent(worker, made, name="demo-0", told=worker_settings):
            await until(lambda: made.plane.readiness()[0])
            # This agent is as new as the replica: what it connects with may be from before it has caught up.
            await until(lambda: made.plane.fleet.view().workers[0].held_blocks > 0)
            assert (await made.chat(messages=text))[0] == 200
        latest, first = json.loads((await made.get("/admin/v1/decisions", "for-people"))[1])["items"]
        assert first["predictedTokens"] == 0
        assert latest["predictedTokens"] >= 0.8 * latest["promptTokens"] > 0


async def test_without_agents_it_is_ready_in_the_end(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker, startup_seconds=0.5) as made:
        assert (await made.chat())[0] == 200


async def test_replicas_with_stores_of_their_own_say_so(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker, replicas=2) as made:
        assert json.loads((await made.get("/readyz"))[1])["store"]["private"] is True
