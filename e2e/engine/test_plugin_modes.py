"""The gate where vLLM runs otherwise: overlapped steps, a KV connector, a tool parser; several servers and ranks.

CPU vLLM switches overlapped ("async") scheduling off by itself; a plugin of the test's own switches it on again. vLLM's
own command, which alone starts several API servers, wants a distribution named "vllm" (versions.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from e2e.engine.gate_scenario import check_gate_scenario, put_policy, threshold
from e2e.engine.load import settled
from e2e.engine.plugin_client import WIDE
from e2e.engine.requests import CHAT, COMPLETION
from e2e.engine.side import Exchange, Side
from e2e.engine.storm import MARK, prompts, storm
from e2e.engine.vllm import VllmOptions, VllmServer, running_vllm

REFUSED: Final = "cache_threshold"
BLOCK: Final = 32
CONNECTOR: Final = {
    "kv_connector": "StubConnector",
    "kv_connector_module_path": "tests.worker.plugin.stub_connector",
    "kv_role": "kv_both",
}
FORCED: Final = '''
    """Undoes what CPU vLLM does to overlapped scheduling, and says when an engine really steps that way."""

    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.engine.core import EngineCore


    def register():
        original, step = CpuPlatform.check_and_update_config.__func__, EngineCore.step_with_batch_queue
        if hasattr(original, "forced"):
            return

        def check_and_update_config(cls, vllm_config):
            original(cls, vllm_config)
            vllm_config.scheduler_config.async_scheduling = True

        said = []

        def step_with_batch_queue(self):
            if not said and isinstance(self.scheduler, AsyncScheduler) and self.batch_queue_size == 2:
                said.append(True)
                print("two steps overlap", flush=True)
            return step(self)

        check_and_update_config.forced = True
        CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
        EngineCore.step_with_batch_queue = step_with_batch_queue
'''
TOOLS: Final[dict[str, Any]] = {
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
}

on_wide = pytest.mark.parametrize("vllm_server", [WIDE], indirect=True)


@asynccontextmanager
async def side(server: VllmServer) -> AsyncIterator[Side]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(300)) as session:
        yield Side(server.url, "", "", server.headers, session)


def completion(prompt: list[int], **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, **more}


def reasons(exchange: Exchange) -> set[str]:
    assert exchange.status == 200, exchange
    chunks = exchange.body if isinstance(exchange.body, list) else [exchange.body]
    assert not any("error" in chunk for chunk in chunks), chunks
    return {one["finish_reason"] for chunk in chunks for one in chunk["choices"] if one.get("finish_reason")}


async def rejected(engine: Side) -> int:
    """Refusals by the policy's threshold, of all ranks."""
    ranks = (await engine.send("/v1/fleet/stats", method="GET")).body["ranks"]
    return sum(rank["counts"].get("rejected_global", 0) for rank in ranks.values())


@pytest.fixture(scope="module")
def overlapped(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """Steps overlap, a connector, a tool parser."""
    folder = tmp_path_factory.mktemp("overlapped")
    info = folder / "forced_async-1.dist-info"
    info.mkdir()
    (folder / "forced_async.py").write_text(textwrap.dedent(FORCED))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: forced-async\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nforced_async = forced_async:register\n")
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), str(root)]), "VLLM_PLUGINS": "cachefleet,forced_async"}
    options = VllmOptions(
        plugin=True,
        environment=tuple(environment.items()),
        extra=(
            f"--kv-transfer-config={json.dumps(CONNECTOR)}",
            "--enable-auto-tool-choice",
            "--tool-call-parser=hermes",
        ),
    )
    with running_vllm(options, tiny_model, folder / "vllm.log") as server:
        yield server


def test_the_four_requests_with_overlapped_steps(overlapped: VllmServer) -> None:
    check_gate_scenario(overlapped)
    assert "two steps overlap" in overlapped.log.read_text(errors="replace")


@pytest.mark.requirement("B4")
async def test_a_connectors_blocks_count(overlapped: VllmServer) -> None:
    async with side(overlapped) as engine:
        (prompt,) = prompts(11, count=1, length=10 * BLOCK)
        await engine.send(COMPLETION, completion(prompt[: 2 * BLOCK]))
        claim = {"kv_transfer_params": {"claim": 2 * BLOCK}}
        refused = await engine.send(COMPLETION, completion(prompt, cache_hit_threshold=0.41, **claim))
        assert reasons(refused) == {REFUSED}
        assert refused.body["kv_transfer_params"]["cache_threshold"]["hit_tokens"] == 4 * BLOCK
        assert reasons(await engine.send(COMPLETION, completion(prompt, cache_hit_threshold=0.4, **claim))) == {
            "length"
        }


@pytest.mark.requirement("B20")
async def test_a_prefill_attempt_runs_cold(overlapped: VllmServer) -> None:
    attempt = {"kv_transfer_params": {"do_remote_decode": True}, "cache_hit_threshold": 0.9}
    async with side(overlapped) as engine:
        (prompt,) = prompts(12, count=1)
        assert reasons(await engine.send(COMPLETION, completion(prompt, **attempt))) == {"length"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "look"}}], ids=str)
async def test_tools_with_a_parser(overlapped: VllmServer, choice: Any, *, stream: bool) -> None:
    text = " ".join(map(str, prompts(13, count=1)[0]))
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 5, "stream": stream, "temperature": 0}
    body |= TOOLS | {"tool_choice": choice, "cache_hit_threshold": 0.99}
    async with side(overlapped) as engine:
        assert reasons(await engine.send(CHAT, body)) == {REFUSED}


async def test_marked_victims_come_back_with_overlapped_steps(overlapped: VllmServer) -> None:
    with threshold(overlapped, 0.0, preemption="HandBack", reject_below=0.5):
        async with side(overlapped) as engine:
            found = await storm(engine, prompts(14), stream=True, **MARK)
            (whole,) = (await storm(engine, [prompts(14)[0]])).answers
            stats = await settled(engine)
    assert found.handed_back
    assert len(found.handed_back) + len(found.survivors) == len(found.answers)
    for answer in found.answers:
        assert len(answer["token_ids"]) == answer["usage"]["completion_tokens"]
    first = found.answers[0]["token_ids"]
    assert first == whole["token_ids"][: len(first)]
    assert stats["blocks_free"] == stats["blocks_total"] - 1


@on_wide
async def test_each_rank_has_its_own_cache_and_its_own_gate(vllm_server: VllmServer) -> None:
    async with side(vllm_server) as engine:
        (prompt,) = prompts(21, count=1, length=320)
        ranked = [{**vllm_server.headers, "X-data-parallel-rank": str(rank)} for rank in (0, 1)]
        await engine.send(COMPLETION, completion(prompt), headers=ranked[1])
        gated = completion(prompt, cache_hit_threshold=0.5)
        for _ in range(4):  # whichever API server takes it
            assert reasons(await engine.send(COMPLETION, gated, headers=ranked[0])) == {REFUSED}
            assert reasons(await engine.send(COMPLETION, gated, headers=ranked[1])) == {"length"}


@on_wide
async def test_answers_of_refused_requests_find_their_api_server(vllm_server: VllmServer) -> None:
    put_policy(vllm_server, threshold=0.8)
    async with side(vllm_server) as engine:
        before = await rejected(engine)
        asked = [completion(prompt, stream=number % 2 == 0) for number, prompt in enumerate(prompts(22, count=60))]
        refused = await asyncio.gather(*(engine.send(COMPLETION, body) for body in asked))
        put_policy(vllm_server)
        ran = await asyncio.gather(*(engine.send(COMPLETION, body) for body in asked[:20]))
        stats = (await engine.send("/v1/fleet/stats", method="GET")).body["ranks"]
        assert await rejected(engine) - before == 60
    assert [reasons(answer) for answer in refused] == [{REFUSED}] * 60
    assert [reasons(answer) for answer in ran] == [{"length"}] * 20
    assert {(rank["running"], rank["waiting"]) for rank in stats.values()} == {(0, 0)}
