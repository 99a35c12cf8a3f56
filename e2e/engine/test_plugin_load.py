"""An engine with the plugin under load, while clients leave and policies change: afterwards all is as before."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from e2e.engine.load import audit, inconsistencies, preemptions, put_under_load, settled
from e2e.engine.side import Side
from e2e.engine.vllm import VllmOptions, VllmServer

WITH_PLUGIN = VllmOptions(plugin=True)

pytestmark = pytest.mark.parametrize("vllm_server", [WITH_PLUGIN], indirect=True)


@pytest.fixture
async def side(vllm_server: VllmServer) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession() as session:
        yield Side(
            vllm_server.url,
            vllm_server.events_endpoint,
            vllm_server.replay_endpoint,
            vllm_server.headers,
            session,
        )


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.slow)])
async def test_nothing_is_lost_or_leaked(side: Side, count: int) -> None:
    before, preempted = await settled(side), await preemptions(side)
    report = await put_under_load(side, count, seed=count)
    after = await settled(side)

    assert not report.wrong, f"{len(report.wrong)} went wrong, the first: {report.wrong[0]}"
    assert report.answered + report.left == count
    assert report.finished["cache_threshold"] > count / 20
    assert report.finished["length"] > count / 5
    assert report.left > count / 20
    assert await preemptions(side) > preempted

    assert after["blocks_free"] == before["blocks_free"] == after["blocks_total"] - 1, "blocks leaked"
    refused = after["counts"]["rejected"] - before["counts"].get("rejected", 0)
    handed_back = after["counts"].get("handed_back", 0) - before["counts"].get("handed_back", 0)
    assert refused + handed_back >= report.finished["cache_threshold"]
    assert after["faults"] == before["faults"] == {}
    assert not inconsistencies(await audit(side))
    assert (await side.complete("still there")).body["choices"][0]["finish_reason"] == "length"
