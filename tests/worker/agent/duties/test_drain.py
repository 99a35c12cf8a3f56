"""The drain as the kubelet asks for it, over the port of a whole agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError

from cachefleet_core.report_frames import Drain, Phase, Warm
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.engines.vllm import http_client as vllm_client
from cachefleet_worker.agent.settings import AgentSettings
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import Worker, prompt, working

pytestmark = pytest.mark.usefixtures("hurried")
Make = Callable[..., AgentSettings]
PATH = "/drain/0f1e2d3c"
CHANGES: dict[str, Any] = {"drain_path": PATH, "drain_seconds": 120.0}


async def drain(worker: Worker, path: str = PATH) -> int:
    status, _ = await worker.get(path)
    return status


async def test_it_is_answered_once_running_requests_have_ended(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=CHANGES, inter_token_seconds=0.02) as worker:
        request = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=64, ignore_eos=True))
        await plane.until(lambda: plane.state and plane.state.running == 1)
        asked = asyncio.create_task(drain(worker))
        await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
        status, body = await worker.get("/readyz")
        assert status == 503
        assert "draining" in body["reasons"]
        assert plane.state is not None
        assert 60 < (plane.state.drain_seconds or 0) <= 120
        assert not asked.done()
        await request
        assert await asyncio.wait_for(asked, 60) == 200


async def test_what_a_gateway_sends_before_it_has_heard_is_waited_for(make_settings: Make, plane: ControlPlane) -> None:
    changes = {**CHANGES, "drain_settle_seconds": 30.0}
    async with working(make_settings, plane, changes=changes, inter_token_seconds=0.01) as worker:
        asked = asyncio.create_task(drain(worker))
        await plane.until(lambda: plane.state and plane.state.phase is Phase.DRAINING)
        answer = await worker.complete(prompt(0, 100), max_tokens=20, ignore_eos=True)
        assert answer["usage"]["completion_tokens"] == 20
        assert not asked.done()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)


async def test_the_agent_lives_on_and_says_that_it_drains(make_settings: Make, plane: ControlPlane) -> None:
    changes = {**CHANGES, "after_drain": "exit"}
    async with working(make_settings, plane, changes=changes) as worker:
        assert await asyncio.wait_for(drain(worker), 60) == 200
        for _ in range(3):
            await plane.next_state()
        assert plane.state is not None
        assert plane.state.phase is Phase.DRAINING
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert (await worker.get("/healthz"))[0] == 200


async def test_a_kubelet_that_asks_again_waits_for_the_same_drain(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane, changes=CHANGES, inter_token_seconds=0.02) as worker:
        request = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=64, ignore_eos=True))
        await plane.until(lambda: plane.state and plane.state.running == 1)
        first = asyncio.create_task(drain(worker))
        await plane.until(lambda: worker.agent.controller.draining.until)
        until = worker.agent.controller.draining.until
        first.cancel()
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert worker.agent.controller.draining.until == until
        await request


MARK: dict[str, Any] = {"vllm_xargs": {"cachefleet_resumable": 1}}


async def test_the_engine_gives_back_what_others_can_go_on_with(make_settings: Make, plane: ControlPlane) -> None:
    """After a quarter of the time; what is not marked runs on."""
    changes = {**CHANGES, "drain_seconds": 4.0, "drain_settle_seconds": 0.2}
    async with working(make_settings, plane, changes=changes, inter_token_seconds=0.02, plugin=True) as worker:
        asked = [
            asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=tokens, ignore_eos=True, **more))
            for tokens, more in ((1000, MARK), (1000, {}))
        ]
        await plane.until(lambda: plane.state and plane.state.running == 2)
        began = asyncio.get_running_loop().time()
        drained = asyncio.create_task(drain(worker))
        marked = await asyncio.wait_for(asked[0], 60)
        assert asyncio.get_running_loop().time() - began >= 1
        assert (marked["choices"][0]["finish_reason"], asked[1].done()) == ("cache_threshold", False)
        assert 10 < marked["usage"]["completion_tokens"] < 1000
        asked[1].cancel()
        assert await asyncio.wait_for(drained, 60) == 200
        await asyncio.gather(asked[1], return_exceptions=True)


@pytest.mark.parametrize("plugin", [True, False])
async def test_an_engine_that_cannot_give_back_drains_as_ever(
    make_settings: Make,
    plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    plugin: bool,
) -> None:
    """One whose plugin is older, or stock vLLM."""
    monkeypatch.setattr(vllm_client, "HAND_BACK_PATH", "/v1/fleet/no_such_route")
    changes = {**CHANGES, "drain_seconds": 1.0}
    async with working(make_settings, plane, changes=changes, inter_token_seconds=0.02, plugin=plugin) as worker:
        asked = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=30, ignore_eos=True, **MARK))
        await plane.until(lambda: plane.state and plane.state.running == 1)
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert (await asked)["choices"][0]["finish_reason"] == "length"
    assert ("answers not handed back" in caplog.text) is plugin


async def test_the_time_is_up_whatever_runs(make_settings: Make, plane: ControlPlane) -> None:
    changes = {**CHANGES, "drain_seconds": 0.3}
    async with working(make_settings, plane, changes=changes, inter_token_seconds=0.2) as worker:
        request = asyncio.create_task(worker.complete(prompt(0, 100), max_tokens=1000, ignore_eos=True))
        await plane.until(lambda: plane.state and plane.state.running == 1)
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert not request.done()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


async def test_an_engine_that_is_started_anew_takes_work_again(make_settings: Make, plane: ControlPlane) -> None:
    """A failed liveness probe makes the kubelet ask, too; the pod stays."""
    async with working(make_settings, plane, changes=CHANGES) as worker:
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert worker.agent.phase is Phase.DRAINING
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state and plane.state.phase is Phase.READY)
        assert (await worker.get("/readyz"))[0] == 200
        assert await asyncio.wait_for(drain(worker), 60) == 200
        assert worker.agent.phase is Phase.DRAINING


async def test_a_worker_that_is_to_go_does_so_whatever_its_engine_does(
    make_settings: Make, plane: ControlPlane
) -> None:
    async with working(make_settings, plane, changes=CHANGES) as worker:
        worker.agent.drain(Drain(seconds=120.0))
        assert await asyncio.wait_for(drain(worker), 60) == 200
        await worker.engine.restart()
        await plane.until(lambda: len(plane.epochs) == 2 and plane.state)
        assert worker.agent.phase is Phase.DRAINING


@pytest.mark.parametrize("path", ["/drain", "/drain/", "/drain/other", "/drain/0f1e2d3c/x"])
async def test_only_its_own_path_opens_it(make_settings: Make, plane: ControlPlane, path: str) -> None:
    async with working(make_settings, plane, changes=CHANGES) as worker, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{worker.agent.http_port}"
        async with http.get(url + path) as answer:
            assert answer.status == 404
        async with http.post(url + PATH) as answer:
            assert answer.status == 405
        assert worker.agent.phase is Phase.READY


async def test_without_a_path_there_is_none(make_settings: Make, plane: ControlPlane) -> None:
    async with working(make_settings, plane) as worker, aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{worker.agent.http_port}/drain") as answer:
            assert answer.status == 404
        assert worker.agent.phase is Phase.READY


@pytest.mark.parametrize("path", ["drain", "/", "/healthz", "/drain/a/b", "/drain/{x}", "/drain/" + "a" * 129])
def test_a_path_that_is_none_is_refused(make_settings: Make, path: str) -> None:
    with pytest.raises(ValidationError, match="drain_path"):
        make_settings(drain_path=path)


async def test_a_worker_that_still_warms_goes_without_warming_on(make_settings: Make, plane: ControlPlane) -> None:
    changes = {**CHANGES, "drain_settle_seconds": 0.1}
    async with working(make_settings, plane, changes=changes, prefill_tokens_per_second=50.0) as worker:
        texts = [f'[{{"role": "user", "content": "{number} {"word " * 30}"}}]' for number in range(40)]
        named = tuple(Prefix(name=f"p{number}", messages=text.encode()) for number, text in enumerate(texts))
        await plane.send(Warm(prefixes=named))
        await plane.until(lambda: worker.engine.requests)
        assert await asyncio.wait_for(drain(worker), 60) == 200
        await plane.next_state()
        assert plane.state is not None
        assert plane.state.warmth.done < plane.state.warmth.total == len(named)
