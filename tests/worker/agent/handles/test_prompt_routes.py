"""``/v1/handles`` and ``/v1/continue`` over HTTP, between a caller and a fake engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from cachefleet_core.continuation import MISMATCHES, prefix_hash
from cachefleet_core.report_frames import Drain, Policy
from cachefleet_worker.agent.agent import Agent, running
from cachefleet_worker.agent.settings import AgentSettings
from tests.fakes.engine import FakeEngine
from tests.worker.agent.fake_control_plane import ControlPlane
from tests.worker.agent.test_agent import prompt

Make = Callable[..., AgentSettings]
MADE: dict[str, str] = {
    "model": "fake",
    "tokenizer_fingerprint": "sha256:t",
    "renderer": "vllm",
    "renderer_version": "0.32.0",
    "template_fingerprint": "sha256:c",
    "effective_instructions_hash": "",
    "effective_tools_hash": "",
}
PREFIX = prompt(1, 64)
GREEDY = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


class Caller:
    """What a control plane would do."""

    def __init__(self, engine: FakeEngine, agent: Agent, http: aiohttp.ClientSession) -> None:
        self.engine, self.agent, self._http = engine, agent, http
        self.headers = {"Authorization": "Bearer key"}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.agent.http_port}{path}"

    async def post(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self._http.post(self.url(path), data=data, headers=self.headers) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def keep(self, ids: list[int], **fields: Any) -> dict[str, Any]:
        body = {"fingerprints": MADE, "prompt_token_ids": ids, "ends_at_boundary": True} | fields
        status, cache = await self.post("/v1/handles", body)
        assert status == 201, cache
        return cache

    async def proceed(self, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = await self.post("/v1/continue", body)
        assert status == 200, answer
        return answer

    async def refused(self, path: str, body: Any) -> tuple[int, str]:
        status, answer = await self.post(path, body)
        assert set(answer["error"]) == {"code", "message"}
        return status, answer["error"]["code"]

    async def events(self, body: dict[str, Any]) -> list[Any]:
        async with self._http.post(self.url("/v1/continue"), json=body, headers=self.headers) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"
            data = [line[6:] async for line in response.content if line.startswith(b"data: ")]
        assert data.pop() == b"[DONE]\n"
        return [msgspec.json.decode(each) for each in data]

    async def whole(self, ids: list[int], salt: str = "") -> list[int]:
        """What the engine itself answers to all ids."""
        body = {"model": "fake", "token_ids": ids, "sampling_params": GREEDY} | ({"cache_salt": salt} if salt else {})
        async with self._http.post(
            self.engine.url + "/inference/v1/generate", json=body, headers=self.headers
        ) as response:
            assert response.status == 200
            return list((await response.json())["choices"][0]["token_ids"])

    def metric(self, route: str, outcome: str) -> float:
        labels = {"route": route, "outcome": outcome}
        return self.agent.metrics.registry.get_sample_value("cachefleet_agent_continues_total", labels) or 0.0


def following(cache: dict[str, Any], append: Any, **fields: Any) -> dict[str, Any]:
    reference = {name: cache[name] for name in ("handle", "prefix_hash", "prefix_token_count")} | MADE
    return {"prompt_cache_ref": reference, "append_token_ids": append, "sampling_params": GREEDY} | fields


@asynccontextmanager
async def calling(make_settings: Make, **options: Any) -> AsyncIterator[Caller]:
    changes = {name: options.pop(name) for name in list(options) if name in AgentSettings.model_fields}
    defaults: dict[str, Any] = {"api_key": "key", "num_blocks": 200, "block_size": 16, "plugin": True}
    async with (
        FakeEngine(**(defaults | options)) as engine,
        aiohttp.ClientSession() as http,
        running(make_settings(engine_url=engine.url, **changes)) as agent,
    ):
        await ControlPlane().until(lambda: agent.epoch)
        yield Caller(engine, agent, http)


async def test_a_continued_prompt_is_answered_as_the_whole_one_is(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        expected = await caller.whole([*PREFIX, 7, 8])
        cache = await caller.keep(PREFIX)
        assert cache["prefix_hash"] == prefix_hash(PREFIX)
        answer = await caller.proceed(following(cache, [7, 8], request_id="req-1"))
        assert answer["choices"][0]["token_ids"] == expected
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert answer["request_id"] == "generate-tokens-req-1"
        after = answer["prompt_cache"]
        assert after["prefix_hash"] == prefix_hash([*PREFIX, 7, 8, *expected])
        assert after["prefix_token_count"] == 66 + len(expected)
        assert after["ends_at_boundary"] is False


async def test_a_conversation_goes_on_by_handles(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        cache = await caller.keep(PREFIX)
        ids = list(PREFIX)
        for turn in range(3):
            append = prompt(10 + turn, 20)
            answer = await caller.proceed(following(cache, append))
            produced = answer["choices"][0]["token_ids"]
            assert produced == await caller.whole([*ids, *append])
            ids += [*append, *produced]
            unproven = answer["prompt_cache"]
            assert await caller.refused("/v1/continue", following(unproven, [1])) == (409, "boundary_not_proven")
            proven = {"handle": unproven["handle"], "prefix_hash": prefix_hash(ids), "ends_at_boundary": True}
            status, cache = await caller.post("/v1/handles", {"fingerprints": MADE} | proven)
            assert (status, cache["ends_at_boundary"]) == (201, True)
        assert len(caller.agent.controller.handles) == 1


async def test_a_stream_is_passed_on_with_the_next_handle_at_its_end(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        expected = await caller.whole([*PREFIX, 7])
        body = following(await caller.keep(PREFIX), [7], stream=True, stream_options={"include_usage": True})
        *events, last = await caller.events(body | {"output_mode": "text"})
        assert [token for event in events for choice in event["choices"] for token in choice["token_ids"]] == expected
        assert any("text" in choice for event in events for choice in event["choices"])
        assert events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
        assert last["choices"] == []
        assert last["prompt_cache"]["prefix_hash"] == prefix_hash([*PREFIX, 7, *expected])


async def test_salts_are_kept_apart(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        cache = await caller.keep(PREFIX, cache_salt="a")
        await caller.proceed(following(cache, [7], cache_salt="a"))
        assert {salt for salt, _ in caller.engine.held_chains()} == {"a"}
        cache = await caller.keep(PREFIX, cache_salt="a")
        for other in ({}, {"cache_salt": "b"}):
            assert await caller.refused("/v1/continue", following(cache, [7], **other)) == (409, "salt_mismatch")


async def test_every_refusal_has_its_code(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        cache = await caller.keep(PREFIX)
        wrong: list[tuple[dict[str, Any], str]] = [({field: "x"}, code.value) for field, code in MISMATCHES.items()]
        wrong += [
            ({"prefix_token_count": 63}, "count_mismatch"),
            ({"prefix_hash": prefix_hash([1])}, "prefix_hash_mismatch"),
            ({"handle": cache["handle"][:-1] + "_"}, "handle_unknown"),
            ({"handle": "vllm_prefix_other"}, "stale_epoch"),
        ]
        for change, code in wrong:
            body = following(cache, [7])
            body["prompt_cache_ref"] |= change
            assert await caller.refused("/v1/continue", body) == (409, code)
            assert caller.metric("continue", code) == 1
        for append, code in [
            ([], "no_marginal_suffix"),
            ([512], "token_out_of_vocabulary"),
            ("x", "append_malformed"),
            ([-1], "append_malformed"),
        ]:
            assert await caller.refused("/v1/continue", following(cache, append)) == (409, code)
        unproven = await caller.keep(prompt(2, 8), ends_at_boundary=False)
        assert await caller.refused("/v1/continue", following(unproven, [7])) == (409, "boundary_not_proven")
        brief = await caller.keep(prompt(3, 8), ttl_seconds=0.01)
        await asyncio.sleep(0.02)
        assert await caller.refused("/v1/continue", following(brief, [7])) == (409, "handle_expired")
        await caller.proceed(following(cache, [7]))  # none of this has hurt it


async def test_a_restart_of_the_engine_makes_every_handle_stale(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        cache, epoch = await caller.keep(PREFIX), caller.agent.epoch
        await caller.engine.restart()
        await ControlPlane().until(lambda: caller.agent.epoch not in (None, epoch))
        assert await caller.refused("/v1/continue", following(cache, [7])) == (409, "stale_epoch")


async def test_a_cleared_cache_makes_every_handle_stale(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        await caller.whole(PREFIX)
        await ControlPlane().until(lambda: caller.agent.feed.streams[0].residents.held >= 4)
        cache = await caller.keep(PREFIX)
        assert caller.engine.reset_prefix_cache()
        await caller.whole([1, 2, 3])
        await ControlPlane().until(lambda: not len(caller.agent.controller.handles))
        assert await caller.refused("/v1/continue", following(cache, [7])) == (409, "stale_epoch")


async def test_handles_of_a_withdrawn_engine_are_gone(make_settings: Make) -> None:
    async with calling(make_settings, nan_metric=True) as caller:
        cache = await caller.keep(PREFIX)
        caller.engine.end_badly(corrupted=1)
        await ControlPlane().until(lambda: caller.agent.controller.closed)
        assert await caller.refused("/v1/continue", following(cache, [7])) == (503, "engine_corrupted")


async def test_a_damaged_handle_is_dropped_and_said_once(make_settings: Make, caplog: pytest.LogCaptureFixture) -> None:
    async with calling(make_settings) as caller:
        cache = await caller.keep(PREFIX)
        caller.agent.controller.handles.get(cache["handle"], 0.0).ids[0] += 1
        assert await caller.refused("/v1/continue", following(cache, [7])) == (409, "handle_corrupt")
        assert await caller.refused("/v1/continue", following(cache, [7])) == (409, "handle_unknown")
    words = "prefix cache: restore failed; dropping entry, full prefill"
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING].count(words) == 1


async def test_the_policy_says_how_many_handles_are_kept(make_settings: Make) -> None:
    async with calling(make_settings) as caller:
        caches = [await caller.keep([number] * 20) for number in range(3)]
        caller.agent.controller.policy(Policy(pool="default/demo", generation=1, max_entries=1))
        assert await caller.refused("/v1/continue", following(caches[1], [7])) == (409, "handle_unknown")
        await caller.proceed(following(caches[2], [7]))
        caller.agent.controller.policy(Policy(pool="default/demo", generation=2, max_entries=0))
        made = {"fingerprints": MADE, "prompt_token_ids": [1]}
        assert await caller.refused("/v1/handles", made) == (409, "handle_not_kept")


@pytest.mark.parametrize("path", ["/v1/continue", "/v1/handles"])
async def test_bodies_that_are_none(make_settings: Make, path: str) -> None:
    async with calling(make_settings, continue_max_bytes=10_000) as caller:
        assert await caller.refused(path, b"{") == (400, "bad_request")
        assert await caller.refused(path, {"unknown": 1}) == (400, "bad_request")
        assert await caller.refused(path, {"x": "y" * 10_001}) == (413, "body_too_large")
        _, answer = await caller.post(path, {"x": "secret"})
        assert "secret" not in answer["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "no_token"),
        ({"Authorization": "Bearer wrong"}, 401, "wrong_token"),
        ({"Authorization": "Basic key"}, 401, "no_token"),
        ({"X-Cachefleet-Token": "wrong"}, 401, "wrong_token"),
        ({"X-Cachefleet-Token": "key"}, 400, "bad_request"),
        ({"Authorization": "Bearer key"}, 400, "bad_request"),
        ({"X-Cachefleet-Token": "wrong", "Authorization": "Bearer key"}, 401, "wrong_token"),
    ],
)
async def test_only_the_worker_key_opens_it(
    make_settings: Make, headers: dict[str, str], status: int, code: str
) -> None:
    async with calling(make_settings) as caller:
        caller.headers = headers
        for path in ("/v1/continue", "/v1/handles"):
            assert await caller.refused(path, b"{") == (status, code)


async def test_without_a_worker_key_nothing_opens_it(make_settings: Make) -> None:
    async with calling(make_settings, api_key="", plugin=False, worker_key_file=None) as caller:
        assert await caller.refused("/v1/continue", b"{") == (403, "no_worker_key")


async def test_a_draining_worker_takes_no_prompt(make_settings: Make) -> None:
    async with calling(make_settings, after_drain="stay") as caller:
        caller.agent.drain(Drain(seconds=5))
        assert await caller.refused("/v1/continue", b"{") == (503, "draining")


async def test_requests_at_one_time_are_bounded(make_settings: Make) -> None:
    async with calling(make_settings, continue_requests=1, inter_token_seconds=0.02) as caller:
        cache = await caller.keep(PREFIX)
        first = asyncio.create_task(caller.proceed(following(cache, [7], sampling_params=GREEDY | {"max_tokens": 100})))
        await ControlPlane().until(lambda: caller.engine.worker.scheduler.busy)
        assert await caller.refused("/v1/handles", b"{") == (503, "busy")
        await first
        assert await caller.refused("/v1/handles", b"{") == (400, "bad_request")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_away_ends_the_request_in_the_engine(make_settings: Make, stream: bool) -> None:  # noqa: FBT001 (a row)
    async with calling(make_settings, inter_token_seconds=0.05) as caller, aiohttp.ClientSession() as http:
        body = following(await caller.keep(PREFIX), [7], stream=stream, sampling_params=GREEDY | {"max_tokens": 500})
        request = asyncio.create_task(_read(http, caller, body))
        await ControlPlane().until(lambda: caller.engine.worker.scheduler.running)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await http.close()
        await ControlPlane().until(lambda: not caller.engine.worker.scheduler.busy, 3)
        assert caller.agent._prompts.under_way == 0


async def _read(http: aiohttp.ClientSession, caller: Caller, body: dict[str, Any]) -> None:
    async with http.post(caller.url("/v1/continue"), json=body, headers=caller.headers) as response:
        await response.read()


async def test_what_the_engine_refuses_is_passed_on(make_settings: Make) -> None:
    async with calling(make_settings, plugin=False) as caller:
        cache = await caller.keep(PREFIX)
        status, answer = await caller.post("/v1/continue", following(cache, [600]))
        assert (status, answer["error"]["message"]) == (400, "Token id 600 is out of vocabulary")
        caller.engine.fail_next(503)
        assert (await caller.post("/v1/continue", following(cache, [7])))[0] == 503
        assert caller.metric("continue", "engine") == 2
        await caller.proceed(following(cache, [7]))


async def test_an_engine_without_the_route_is_named(make_settings: Make) -> None:
    async with calling(make_settings, scale_out=False) as caller:
        body = following(await caller.keep(PREFIX), [7])
        assert await caller.refused("/v1/continue", body) == (501, "generate_not_served")


async def test_an_engine_that_is_gone(make_settings: Make) -> None:
    async with calling(make_settings, unreachable_polls=1000) as caller:
        body = following(await caller.keep(PREFIX), [7])
        await caller.engine.crash()
        status, code = await caller.refused("/v1/continue", body)
        assert (status, code) in {(502, "engine_unreachable"), (503, "engine_not_ready")}


async def test_a_stream_that_breaks_off_says_so(make_settings: Make) -> None:
    async with calling(make_settings, inter_token_seconds=0.01) as caller, aiohttp.ClientSession() as http:
        cache = await caller.keep(PREFIX)
        caller.engine.cut_next_stream(2)
        body = following(cache, [7], stream=True)
        async with http.post(caller.url("/v1/continue"), json=body, headers=caller.headers) as response:
            text = await response.text()
        assert '"code":"engine_lost"' in text
        assert "prompt_cache" not in text
        assert "[DONE]" not in text
        await caller.proceed(following(cache, [7]))


async def test_hits_are_logged_without_content(make_settings: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with calling(make_settings) as caller:
        await caller.whole(PREFIX)
        await caller.proceed(following(await caller.keep(PREFIX, cache_salt="the-salt"), [7], cache_salt="the-salt"))
        await caller.proceed(following(await caller.keep(PREFIX), [7]))
    lines = {record.message: record.__dict__ for record in caplog.records}
    hit = lines["prefix cache: hit - skipping prefill of cached prefix"]
    assert (hit["reused_tokens"], hit["prompt_tokens"]) == (64, 65)
    assert lines["prefill complete"]["reused"] == 64
    assert lines["prefill complete"]["elapsed_ms"] >= 0
    said = str([line for line in lines.values() if str(line["name"]).startswith("cachefleet")])
    for secret in ("the-salt", "Bearer", str(PREFIX)[1:30]):
        assert secret not in said
