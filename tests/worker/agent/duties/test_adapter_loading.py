"""Adapters of a running engine: loaded, unloaded, re-pointed and told, by a whole agent beside a fake engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cachefleet_core.pool.adapter_reports import AdapterProblem, WantedAdapter
from cachefleet_core.report_frames import Phase, Policy
from cachefleet_worker.agent.duties.warmup import TOLD_SECONDS
from cachefleet_worker.agent.settings import AgentSettings
from cachefleet_worker.agent.wiring import running
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import Worker, working

pytestmark = pytest.mark.usefixtures("hurried")
Make = Callable[..., AgentSettings]
QUICK = {
    "load_adapters": True,
    "adapter_look_seconds": 0.2,
    "adapter_retry_seconds": 0.05,
    "adapter_retry_cap_seconds": 0.1,
}
LOADS: dict[str, Any] = {"loads_adapters": True, "adapter_slots": 2}


def wants(generation: int = 1, /, **adapters: str) -> Policy:
    named = tuple(WantedAdapter(name=name, path=path) for name, path in adapters.items())
    return Policy(pool="default/demo", uid="u", generation=generation, adapters=named)


async def serves(worker: Worker, **adapters: str) -> None:
    """Wait until these are served, and reported."""
    await worker.plane.until(lambda: worker.engine.adapters.served == adapters)
    await worker.plane.until(lambda: told(worker.plane) == set(adapters))


def told(plane: ControlPlane) -> set[str] | None:
    report = plane.state.adapters if plane.state else None
    return None if report is None or report.served is None else set(report.served)


async def test_the_list_of_a_pool_is_followed_without_a_restart(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK, **LOADS) as worker:
        epochs = list(plane.epochs)
        await plane.send(wants(1, sql="/a", french="/b"))
        await serves(worker, sql="/a", french="/b")
        await plane.send(wants(2, sql="/a", legal="/c"))
        await serves(worker, sql="/a", legal="/c")
        assert worker.engine.adapters.calls == [("sql", "/a"), ("french", "/b"), ("french",), ("legal", "/c")]
        assert plane.epochs == epochs
        assert plane.state is not None
        assert plane.state.adapters is not None
        assert (plane.state.adapters.slots, plane.state.adapters.problems) == (2, ())
        assert [worker.metric("adapters_total", outcome=one) for one in ("loaded", "unloaded", "failed")] == [3, 1, 0]


async def test_a_name_that_means_another_path_is_told_as_gone_before_it_goes(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, changes=QUICK, **LOADS) as worker:
        await plane.send(wants(1, sql="/a"))
        await serves(worker, sql="/a")
        plane.frames.clear()
        await plane.send(wants(2, sql="/b"))
        await plane.until(lambda: told(plane) == set())
        assert worker.engine.adapters.served == {"sql": "/a"}
        await serves(worker, sql="/b")
        assert worker.engine.adapters.calls == [("sql", "/a"), ("sql",), ("sql", "/b")]


async def test_what_cannot_be_loaded_is_told_with_the_engines_words_and_tried_again(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, changes=QUICK, **LOADS) as worker:
        await plane.send(wants(1, sql="/missing/a", french="/b"))
        await serves(worker, french="/b")
        problem = AdapterProblem(
            name="sql", detail="from /missing/a: Loading lora sql failed: No adapter found for /missing/a"
        )
        await plane.until(lambda: plane.state and plane.state.adapters and plane.state.adapters.problems == (problem,))
        await plane.until(lambda: worker.engine.adapters.calls.count(("sql", "/missing/a")) > 2)
        assert plane.state is not None
        assert plane.state.adapters is not None
        assert plane.state.adapters.loading == ("sql",)
        await plane.send(wants(2, french="/b"))
        await plane.until(lambda: plane.state and plane.state.adapters and not plane.state.adapters.problems)


async def test_an_engine_without_the_routes_says_what_to_set(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK):
        await plane.send(wants(1, sql="/a"))
        await plane.until(lambda: plane.state and plane.state.adapters and plane.state.adapters.problems)
        assert plane.state is not None
        assert plane.state.adapters is not None
        assert "set VLLM_ALLOW_RUNTIME_LORA_UPDATING to 1" in plane.state.adapters.problems[0].detail


async def test_what_others_load_or_take_away_is_set_right(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK, **LOADS) as worker:
        await plane.send(wants(1, sql="/a"))
        await serves(worker, sql="/a")
        worker.engine.adapters.served = {"other": "/etc"}
        await serves(worker, sql="/a")
        await worker.engine.restart()
        await serves(worker, sql="/a")


async def test_a_sender_that_tells_no_adapters_changes_nothing(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=QUICK, **LOADS) as worker:
        await plane.send(wants(1, sql="/a"))
        await serves(worker, sql="/a")
        await plane.send(Policy(pool="default/demo", uid="u", generation=2))
        await plane.until(lambda: plane.state and plane.state.generation == 2)
        await plane.send(wants(3, sql="/a"))
        await plane.until(lambda: plane.state and plane.state.generation == 3)
        assert worker.engine.adapters.calls == [("sql", "/a")]


async def test_where_engines_load_them_at_their_start_the_agent_only_tells_them(
    make_settings: Make, plane: ControlPlane
) -> None:
    started = (("sql", "/a"), ("french", "/b"))
    quick = {"adapter_look_seconds": 0.2}
    async with working(make_settings, plane, changes=quick, adapters=started, **LOADS) as worker:
        await plane.send(wants(1, legal="/c"))
        await plane.until(lambda: plane.state and plane.state.generation == 1)
        worker.engine.adapters.busy = ("french",)
        await plane.until(lambda: plane.state and plane.state.adapters and plane.state.adapters.busy == ("french",))
        assert plane.state is not None
        assert plane.state.adapters is not None
        assert plane.state.adapters.served == ("sql", "french")
        del worker.engine.adapters.served["sql"]
        await plane.until(lambda: told(plane) == {"french"})
        assert not worker.engine.adapters.calls


async def test_a_plain_engine_tells_no_adapters(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane):
        assert plane.state is not None
        assert plane.state.adapters is None


async def test_a_worker_is_not_ready_before_each_adapter_was_tried(
    make_settings: Make, plane: ControlPlane, tmp_path: Path
) -> None:
    file = tmp_path / "policy.json"
    file.write_bytes(msgspec.json.encode(wants(1, sql="/a", french="/missing/b")))
    async with FakeEngine(api_key="key", **LOADS) as engine:
        settings = make_settings(engine_url=engine.url, control_planes=plane.url, policy_file=file, **QUICK)
        engine.adapters.loadable.clear()
        async with running(settings):
            await plane.until(lambda: engine.adapters.calls and plane.state)
            until = time.monotonic() + 1.5 * TOLD_SECONDS  # so long it warms up for other reasons
            while time.monotonic() < until:
                assert (await plane.next_state()).phase is Phase.WARMING
            engine.adapters.loadable.set()
            await plane.until(lambda: plane.state and plane.state.phase is Phase.READY)
            assert told(plane) == {"sql"}
            assert ("french", "/missing/b") in engine.adapters.calls
