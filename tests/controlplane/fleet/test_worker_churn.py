"""Workers that go, with real agents: who drains gets nothing new, who dies costs no whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cachefleet_core.report_frames import Drain, Phase
from cachefleet_worker.agent.agent import Agent
from tests.controlplane.gateway.harness import FLEET_KEY, POOL, engine
from tests.controlplane.hot_prefixes.test_new_worker_warmup import agent, worker_settings
from tests.controlplane.replicas import Traffic
from tests.controlplane.waiting import until, value
from tests.controlplane.wiring.test_control_plane import Plane, running
from tests.fakes.engine import FakeEngine

pytestmark = pytest.mark.usefixtures("hurried")

__all__ = ["worker_settings"]


@asynccontextmanager
async def fleet(
    folder: Path, told: dict[str, Any], *workers: FakeEngine, replicas: int
) -> AsyncIterator[tuple[list[Plane], list[Agent]]]:
    """Replicas that know these ready workers, with an agent beside each."""
    async with AsyncExitStack() as stack:
        planes = []
        for number in range(replicas):
            own = folder / f"replica-{number}"
            own.mkdir()
            planes.append(await stack.enter_async_context(running(own, workers[0])))
            _list(own, workers, ready=range(len(workers)))
        told = told | {"token_file": folder / "replica-0" / "reports.token"}
        agents = [
            await stack.enter_async_context(agent(one, *planes, name=f"demo-{number}", told=told))
            for number, one in enumerate(workers)
        ]
        for plane in planes:
            await until(lambda plane=plane: _reporting(plane) == len(workers))  # type: ignore[misc]
        yield planes, agents


def _list(folder: Path, workers: Sequence[FakeEngine], *, ready: Sequence[int]) -> None:
    listed = [{"name": f"demo-{i}", "url": one.url, "ready": i in ready} for i, one in enumerate(workers)]
    (folder / "endpoints.json").write_text(json.dumps({POOL: listed}))


def _reporting(plane: Plane) -> int:
    return sum(one.ready and one.load is not None for one in plane.plane.fleet.view().workers)


def _phase(plane: Plane, name: str) -> str | None:
    found = next((one for one in plane.plane.fleet.view().workers if one.name == name), None)
    return found.phase if found else None


def _asked(worker: FakeEngine) -> int:
    return sum(seen.path == "/v1/chat/completions" for seen in worker.requests)


async def test_who_drains_gets_nothing_new_from_any_replica_and_ends_what_it_has(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    async with (
        engine(plugin=True, inter_token_seconds=0.02) as leaving,
        engine(plugin=True, inter_token_seconds=0.02) as staying,
        fleet(tmp_path, worker_settings, leaving, staying, replicas=2) as (planes, agents),
        AsyncExitStack() as stack,
    ):
        traffic = [await stack.enter_async_context(Traffic(one.gateway).flowing(3)) for one in planes]
        await until(lambda: all(one.answered >= 10 for one in traffic) and _asked(leaving) > 0)
        agents[0].drain(Drain(seconds=60))
        await until(lambda: all(_phase(one, "demo-0") == Phase.DRAINING for one in planes))
        await asyncio.sleep(0.05)  # what was decided before that is sent
        asked, answered = _asked(leaving), [one.answered for one in traffic]
        async with asyncio.timeout(60):
            await agents[0].drained()
        await until(lambda: all(one.answered >= before + 20 for one, before in zip(traffic, answered, strict=True)))
        assert _asked(leaving) == asked
        await leaving.crash()  # it is idle: nobody notices
        await stack.aclose()
        assert [one.failures for one in traffic] == [[], []]


async def test_a_worker_killed_in_the_midst_costs_no_whole_answer(
    tmp_path: Path, worker_settings: dict[str, Any]
) -> None:
    """Its endpoint stays listed, as it does until a kubelet has noticed."""
    async with (
        engine(plugin=True, inter_token_seconds=0.02) as dying,
        engine(plugin=True, inter_token_seconds=0.02) as other,
        fleet(tmp_path, worker_settings, dying, other, replicas=1) as ((plane,), _),
    ):
        async with Traffic(plane.gateway, streams=False).flowing(8) as traffic:
            await until(lambda: traffic.answered >= 20 and bool(dying.worker.scheduler.running))
            await dying.crash()
            before = traffic.answered
            await until(lambda: traffic.answered >= before + 40)
            await dying.start()
            before = traffic.answered
            await until(lambda: traffic.answered >= before + 40)
        assert traffic.failures == []


async def test_a_worker_reports_as_itself_alone(tmp_path: Path, worker_settings: dict[str, Any]) -> None:
    """With the token that ``cachefleet up`` gives each agent."""
    async with engine() as one, running(tmp_path, one, reports_token_file=None) as plane:
        told = worker_settings | {"token_file": tmp_path / "token"}
        (tmp_path / "token").write_text(FLEET_KEY.report_token(POOL, "demo-1"))
        async with agent(one, plane, name="demo-0", told=told):
            refused = {"check": "reports", "outcome": "unauthenticated"}
            await until(lambda: value(plane.plane.metrics, "auth_checks_total", **refused) > 0)
            assert _reporting(plane) == 0
        (tmp_path / "token").write_text(FLEET_KEY.report_token(POOL, "demo-0"))
        async with agent(one, plane, name="demo-0", told=told):
            await until(lambda: _reporting(plane) == 1)


async def test_a_rollout_of_a_pool_of_one_loses_nothing(tmp_path: Path, worker_settings: dict[str, Any]) -> None:
    """The new one is ready before the old one drains, as ``maxSurge: 1, maxUnavailable: 0`` has it."""
    async with (
        engine(plugin=True, inter_token_seconds=0.02) as old,
        engine(plugin=True, inter_token_seconds=0.02) as new,
        fleet(tmp_path, worker_settings, old, replicas=1) as ((plane,), (leaving,)),
    ):
        folder = tmp_path / "replica-0"
        async with Traffic(plane.gateway).flowing(6) as traffic:
            await until(lambda: traffic.answered >= 20)
            told = worker_settings | {"token_file": folder / "reports.token"}
            async with agent(new, plane, name="demo-1", told=told) as joining:
                await until(lambda: not joining.unready)
                _list(folder, [old, new], ready=[0, 1])
                await until(lambda: _asked(new) > 0)
                leaving.drain(Drain(seconds=60))
                _list(folder, [old, new], ready=[1])
                async with asyncio.timeout(60):
                    await leaving.drained()
                await old.crash()
                before = traffic.answered
                await until(lambda: traffic.answered >= before + 20)
        assert traffic.failures == []


async def test_with_nobody_ready_a_client_is_told_at_once_when_to_come_back(tmp_path: Path) -> None:
    async with engine() as worker, running(tmp_path, worker) as made:
        _list(tmp_path, [worker], ready=[])
        await until(lambda: not any(one.ready for one in made.plane.fleet.view().workers))
        status, body = await made.chat()
        assert (status, b"Try again in" in body or b"ready" in body) == (503, True)
        assert (await made.get("/readyz"))[0] == 200  # others have none either
