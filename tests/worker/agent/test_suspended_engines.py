"""An engine that answers and serves nothing: what its agent reports of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cachefleet_core.report_frames import Phase
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import Make, Worker, prompt, working

pytestmark = pytest.mark.usefixtures("hurried")
PLUGIN = {"plugin": True}
STOCK: dict[str, Any] = {}


async def says(worker: Worker, suspended: str) -> None:
    await worker.plane.until(lambda: worker.plane.state and worker.plane.state.suspended == suspended)


@pytest.mark.parametrize("options", [PLUGIN, STOCK])
async def test_an_engine_asleep_is_reported_and_its_blocks_are_withdrawn(
    make_settings: Make, plane: ControlPlane, options: dict[str, Any]
) -> None:
    async with working(make_settings, plane, **options) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        assert plane.receiver.keys
        worker.engine.sleep()
        await says(worker, "asleep")
        await plane.until(lambda: not plane.receiver.keys)
        assert plane.state is not None
        # As its process lives, it is neither failed nor replaced; older control planes read the phase alone.
        assert (plane.state.phase, plane.state.reason) == (Phase.READY, "asleep")
        assert (await worker.get("/readyz"))[0] == 200
        worker.engine.wake_up()
        await says(worker, "")
        await worker.complete(prompt(0, 100))
        await worker.whole()
        assert plane.receiver.keys


@pytest.mark.parametrize("options", [PLUGIN, STOCK])
async def test_a_paused_engine_is_reported_whose_metrics_say_nothing(
    make_settings: Make, plane: ControlPlane, options: dict[str, Any]
) -> None:
    async with working(make_settings, plane, **options) as worker:
        await worker.complete(prompt(0, 100))
        worker.engine.pause(clear=False)
        await says(worker, "paused")
        worker.engine.unpause()
        await says(worker, "")
        await worker.whole()
        assert plane.receiver.keys  # they were kept


async def test_a_pause_that_drops_the_cache_is_seen_before_the_next_poll_is_due(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, **PLUGIN) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        polls = worker.metric("engine_polls_total", outcome="answered")
        object.__setattr__(worker.agent._settings, "poll_seconds", 1e9)  # from the next poll on
        await worker.complete(prompt(500, 100))
        await plane.until(lambda: worker.metric("engine_polls_total", outcome="answered") > polls)
        worker.engine.pause()
        await says(worker, "paused")


async def test_an_engine_whose_weights_are_updated_is_reported(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, **PLUGIN) as worker:
        worker.engine.pause()
        worker.engine.worker.metrics.weight_operation(under_way=1)
        await says(worker, "updating_weights")
        worker.engine.worker.metrics.weight_operation(under_way=0)
        await says(worker, "paused")


@pytest.mark.parametrize("options", [PLUGIN, STOCK])
async def test_a_nap_between_two_polls_leaves_no_block_reported(
    make_settings: Make, plane: ControlPlane, options: dict[str, Any]
) -> None:
    """The plugin publishes what an idle engine would not; a stock engine counts its naps."""
    async with working(make_settings, plane, **options) as worker:
        await worker.complete(prompt(0, 100))
        await worker.whole()
        worker.engine.sleep()
        worker.engine.wake_up()  # no poll comes between
        await plane.until(lambda: not plane.receiver.keys)
        assert plane.state is not None
        assert plane.state.suspended == ""


async def test_an_engine_that_stands_still_is_stuck_until_it_moves(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes={"stuck_seconds": 5.0}, **PLUGIN) as worker:
        worker.engine.worker.suspend("", mode="keep", clear=False)
        asked = asyncio.create_task(worker.complete(prompt(0, 100)))
        await says(worker, "stuck")
        assert not asked.done()
        worker.engine.worker.serve()
        await says(worker, "")
        await asked
