"""The fake engine over its sockets: answers, aborts, faults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from cachefleet_core.block_keys import BlockKeyer, Namespace
from tests.fakes.engine import FakeEngine

PROMPT = list(range(100))


async def complete(session: aiohttp.ClientSession, engine: FakeEngine, **body: Any) -> dict[str, Any]:
    body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True} | body
    async with session.post(f"{engine.url}/v1/completions", json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == 200, answer
        return answer


async def streamed(session: aiohttp.ClientSession, engine: FakeEngine, **body: Any) -> tuple[str, dict[str, Any]]:
    """The text of a streamed completion, and its last choice."""
    body = {"prompt": PROMPT, "ignore_eos": True, "stream": True} | body
    choices = []
    async with session.post(f"{engine.url}/v1/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                choices += json.loads(line[6:])["choices"]
    return "".join(choice["text"] for choice in choices), choices[-1]


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def until(condition: Any, seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 # the condition is another party's state, not an event
            await asyncio.sleep(0.005)


async def test_a_repeated_prompt_is_served_from_cache_up_to_the_last_block_boundary(
    session: aiohttp.ClientSession,
) -> None:
    async with FakeEngine(block_size=16) as engine:
        assert cached(await complete(session, engine)) == 0
        assert cached(await complete(session, engine)) == 96
        assert cached(await complete(session, engine, prompt=PROMPT[:96])) == 80
        assert cached(await complete(session, engine, cache_salt="tenant")) == 0
        assert cached(await complete(session, engine, cache_salt="tenant")) == 96


async def test_nothing_is_reused_without_prefix_caching(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(prefix_caching=False) as engine:
        await complete(session, engine)
        assert cached(await complete(session, engine)) == 0
        assert engine.held() == set()


async def test_an_answer_depends_on_all_tokens_so_far_and_continues_anywhere(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as one, FakeEngine(block_size=32) as other:
        whole = (await complete(session, one, max_tokens=10, return_token_ids=True))["choices"][0]["token_ids"]
        rest = await complete(session, other, prompt=PROMPT + whole[:6], max_tokens=4, return_token_ids=True)
        assert rest["choices"][0]["token_ids"] == whole[6:]
        changed = await complete(session, one, prompt=[7, *PROMPT[1:]], max_tokens=10, return_token_ids=True)
        assert changed["choices"][0]["token_ids"] != whole


async def test_the_context_and_natural_end_of_an_answer(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(natural_tokens=5, max_model_len=120) as engine:
        ended = await complete(session, engine, max_tokens=10, ignore_eos=False, return_token_ids=True)
        assert ended["choices"][0]["finish_reason"] == "stop"
        assert ended["choices"][0]["token_ids"][-1] == engine.tokenizer.eos
        assert ended["usage"]["completion_tokens"] == 5
        full = await complete(session, engine, max_tokens=1000)
        assert full["choices"][0]["finish_reason"] == "length"
        assert full["usage"]["total_tokens"] == 120


async def test_a_client_that_goes_away_frees_its_blocks_at_once(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(inter_token_seconds=1) as engine:
        body = {"prompt": PROMPT, "max_tokens": 300, "stream": True, "ignore_eos": True}
        async with session.post(f"{engine.url}/v1/completions", json=body) as response:
            await response.content.readline()
            assert len(engine.worker.scheduler.running) == 1
        await until(lambda: not engine.worker.scheduler.busy)
        assert engine.worker.pool.free == engine.options.num_blocks - 1


async def test_multi_byte_characters_are_never_split_in_a_stream(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(multibyte=True) as engine:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "hé"}], "max_tokens": 200, "ignore_eos": True}
        async with session.post(f"{engine.url}/v1/chat/completions", json=body) as response:
            whole = (await response.json())["choices"][0]["message"]["content"]
        text = ""
        async with session.post(f"{engine.url}/v1/chat/completions", json=body | {"stream": True}) as response:
            async for line in response.content:
                if line.startswith(b"data: {"):
                    text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        assert text == whole
        assert any(len(character.encode()) > 1 for character in text)
        assert "\ufffd" not in text[:-1]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_text_before_it(session: aiohttp.ClientSession, *, stream: bool) -> None:
    async with FakeEngine() as engine:
        whole = (await complete(session, engine, max_tokens=40))["choices"][0]["text"]
        stop = whole[20:24]
        body: dict[str, Any] = {"stop": ["never", stop], "max_tokens": 40}
        if stream:
            text, last = await streamed(session, engine, **body)
        else:
            last = (await complete(session, engine, **body))["choices"][0]
            text = last["text"]
        assert text == whole[: whole.index(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
        assert not engine.worker.scheduler.busy


async def test_a_stop_id_ends_an_answer(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        whole = (await complete(session, engine, max_tokens=40, return_token_ids=True))["choices"][0]
        stop = whole["token_ids"][10]
        choice = (await complete(session, engine, max_tokens=40, stop_token_ids=[stop]))["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        assert choice["text"] == whole["text"][: whole["token_ids"].index(stop)]


async def test_a_crash_resets_connections_and_a_restart_is_empty(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(inter_token_seconds=0.02) as engine:
        await complete(session, engine)
        started = engine.worker.started
        task = asyncio.create_task(complete(session, engine, max_tokens=300))
        await until(lambda: engine.worker.scheduler.running)
        await engine.crash()
        with pytest.raises(aiohttp.ClientError):
            await task
        with pytest.raises(aiohttp.ClientConnectorError):
            await complete(session, engine)
        await engine.restart()
        assert engine.held() == set()
        assert engine.worker.publisher.sequence == 0
        assert engine.worker.started > started
        assert cached(await complete(session, engine)) == 0


async def test_a_hung_engine_answers_when_it_resumes(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.hang()
        task = asyncio.create_task(complete(session, engine))
        await asyncio.sleep(0.05)
        assert not task.done()
        engine.resume()
        assert cached(await task) == 0


async def test_a_hung_engine_can_be_killed(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.hang()
        task = asyncio.create_task(complete(session, engine))
        await asyncio.sleep(0.02)
        await engine.crash()
        with pytest.raises(aiohttp.ClientError):
            await task


async def test_injected_failures_are_used_up_one_by_one(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.fail_next(503, 2)
        for expected in (503, 503, 200):
            async with session.post(f"{engine.url}/v1/completions", json={"prompt": "a"}) as response:
                assert response.status == expected
        async with session.get(f"{engine.url}/health") as response:
            assert response.status == 200


async def test_a_cut_stream_breaks_in_its_middle(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        engine.cut_next_stream(after=3)
        body = {"prompt": PROMPT, "max_tokens": 10, "stream": True, "ignore_eos": True}
        got = []
        with pytest.raises(aiohttp.ClientPayloadError):
            async with session.post(f"{engine.url}/v1/completions", json=body) as response:
                got = [line async for line in response.content if line.strip()]
        assert len(got) <= 3
        assert not engine.worker.scheduler.busy


async def test_the_key_guards_what_vllm_guards(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(api_key="secret") as engine:
        for path, status in (("/v1/models", 401), ("/metrics", 200), ("/kv_event_sources", 200), ("/v1/none", 401)):
            async with session.get(engine.url + path) as response:
                assert response.status == status, path
        async with session.get(f"{engine.url}/v1/models", headers={"Authorization": "Bearer secret"}) as response:
            assert response.status == 200


async def test_requests_are_remembered_with_headers_and_body(session: aiohttp.ClientSession) -> None:
    async with FakeEngine() as engine:
        await complete(session, engine, cache_salt="s")
        seen = engine.requests[-1]
        assert (seen.method, seen.path) == ("POST", "/v1/completions")
        assert seen.headers["Content-Type"] == "application/json"
        assert json.loads(seen.body)["cache_salt"] == "s"


async def test_ground_truth_in_three_forms_agrees(session: aiohttp.ClientSession) -> None:
    async with FakeEngine(block_size=16) as engine:
        await complete(session, engine, prompt=PROMPT[:40], cache_salt="a", max_tokens=1)
        assert engine.held_chains() == {("a", tuple(PROMPT[:16])), ("a", tuple(PROMPT[:32]))}
        assert len(engine.held()) == 2
        keyer = BlockKeyer(b"k", Namespace("c", salt="a"), 16)
        assert engine.held_keys(lambda salt: keyer) == set(keyer.keys(PROMPT[:32]))


async def test_time_is_simulated_by_rate_and_latency(
    session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeEngine(prefill_tokens_per_second=1000, inter_token_seconds=0.02) as engine:
        steps: list[float] = []
        spend = engine.worker._spend

        async def noted(seconds: float, now: float) -> None:
            steps.append(seconds)
            await spend(seconds, now)

        monkeypatch.setattr(engine.worker, "_spend", noted)
        begun = asyncio.get_running_loop().time()
        await complete(session, engine, max_tokens=6)
        assert asyncio.get_running_loop().time() - begun >= 0.15
        assert steps == pytest.approx([0.1] + [0.02] * 5), "100 tokens at 1000/s, then 5 steps"


async def test_fifty_engines_in_one_process(session: aiohttp.ClientSession) -> None:
    engines = [FakeEngine(num_blocks=64) for _ in range(50)]
    async with asyncio.timeout(20):
        await asyncio.gather(*(engine.start() for engine in engines))
        answers = await asyncio.gather(*(complete(session, engine) for engine in engines))
        assert len({answer["choices"][0]["text"] for answer in answers}) == 1
        await asyncio.gather(*(engine.__aexit__() for engine in engines))


async def test_a_pool_too_small_for_its_context_is_refused() -> None:
    with pytest.raises(ValueError, match="usable blocks"):
        FakeEngine(num_blocks=4, block_size=16, max_model_len=100)
