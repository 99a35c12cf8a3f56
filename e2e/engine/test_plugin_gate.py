"""The gate on real vLLM over HTTP: every API that can say it, streamed and not, mixed batches, bad input, leaks."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import aiohttp
import pytest

from e2e.engine.gate_scenario import check_gate_scenario, put_policy, threshold
from e2e.engine.requests import CHAT, COMPLETION, GENERATE
from e2e.engine.side import Exchange, Side
from e2e.engine.vllm import VllmOptions, VllmServer

PLUGIN: Final = VllmOptions(plugin=True)
MESSAGE: Final = "Parameter `cache_hit_threshold` must be between 0.0 and 1.0 if provided."
WRONG: Final = ["-0.1", "1.1", "NaN", "1e309", "true", '"0.5"']
REFUSED: Final = "cache_threshold"
TOOLS: Final = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
RANDOM: Final = random.Random(7)

pytestmark = pytest.mark.parametrize("vllm_server", [PLUGIN], indirect=True)


@pytest.fixture
async def engine(vllm_server: VllmServer) -> AsyncIterator[Side]:
    timeout = aiohttp.ClientTimeout(300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=64)) as session:
        yield Side(vllm_server.url, "", vllm_server.replay_endpoint, vllm_server.headers, session)


@pytest.fixture
def strict(vllm_server: VllmServer) -> Iterator[None]:
    """A pool whose threshold nothing reaches."""
    with threshold(vllm_server, 1.0):
        yield


def cold(count: int = 120) -> list[int]:
    """A prompt that no engine has seen."""
    return [RANDOM.randrange(300, 1200) for _ in range(count)]


def words(count: int = 40) -> str:
    return " ".join(str(RANDOM.randrange(10**6)) for _ in range(count))


def completion(prompt: Any, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, **more}


def chat(text: str = "", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text or words()}]
    return {"model": "tiny", "messages": messages, "max_tokens": 3, "temperature": 0, "ignore_eos": True, **more}


def generate(ids: list[int], extra_args: Any = None, **more: Any) -> dict[str, Any]:
    sampling = {"max_tokens": 3, "temperature": 0, "ignore_eos": True, "extra_args": extra_args}
    return {"token_ids": ids, "sampling_params": sampling, **more}


def choices(exchange: Exchange) -> list[dict[str, Any]]:
    assert exchange.status == 200, exchange
    if not isinstance(exchange.body, list):
        return list(exchange.body["choices"])
    assert exchange.done
    assert not any("error" in chunk for chunk in exchange.body), exchange.body
    return [choice for chunk in exchange.body for choice in chunk["choices"]]


def reasons(exchange: Exchange) -> dict[int, str]:
    """The finish reason of each choice, exactly one for each."""
    found = [(one["index"], one["finish_reason"]) for one in choices(exchange) if one.get("finish_reason")]
    assert len(dict(found)) == len(found)
    return dict(found)


def tokens(exchange: Exchange) -> int:
    usages = [exchange.body] if not isinstance(exchange.body, list) else exchange.body
    return int([one["usage"] for one in usages if one.get("usage")][-1]["completion_tokens"])


def streaming(stream: bool) -> dict[str, Any]:  # noqa: FBT001 - a parameter of the tests
    return {"stream": True, "stream_options": {"include_usage": True}} if stream else {}


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.mark.requirement("B2", "B4", "B6", "B14")
def test_the_four_requests_of_the_proposal(vllm_server: VllmServer) -> None:
    check_gate_scenario(vllm_server)


# Bad input


@pytest.mark.parametrize("value", WRONG)
@pytest.mark.requirement("B3")
async def test_what_is_no_ratio_is_refused_by_each_api(engine: Side, value: str) -> None:
    top = f', "cache_hit_threshold": {value}}}'
    xargs = f', "vllm_xargs": {{"cache_hit_threshold": {value}}}}}'
    streamed = f', "stream": true, "cache_hit_threshold": {value}}}'
    bodies = [
        (path, json.dumps(body)[:-1] + more)
        for path, body in ((CHAT, chat()), (COMPLETION, completion("x")))
        for more in (top, xargs, streamed)
    ]
    args = json.dumps(generate(cold())).replace(
        '"extra_args": null', f'"extra_args": {{"cache_hit_threshold": {value}}}'
    )
    for path, body in [*bodies, (GENERATE, args)]:
        answer = await engine.send(path, body.encode())
        assert answer.status == 400, (path, body, answer)
        error = answer.body["error"]
        assert (error["message"], error["type"], error["code"]) == (MESSAGE, "BadRequestError", 400), (path, body)


async def test_null_is_absent(engine: Side) -> None:
    for path, body in (
        (CHAT, chat(cache_hit_threshold=None)),
        (COMPLETION, completion(cold(), cache_hit_threshold=None)),
    ):
        assert set(reasons(await engine.send(path, body)).values()) == {"length"}


@pytest.mark.requirement("B12")
async def test_empty_prompts_are_vllms_own_400(engine: Side) -> None:
    for prompt in ("", list[int]()):
        assert (await engine.send(COMPLETION, completion(prompt, cache_hit_threshold=0.5))).status == 400
    assert (await engine.send(CHAT, chat() | {"messages": [], "cache_hit_threshold": 0.5})).status == 400
    assert (await engine.send("/health", method="GET")).status == 200


# Each API


@both
@pytest.mark.requirement("B2")
async def test_a_requests_own_zero_always_runs(engine: Side, strict: None, stream: bool) -> None:  # noqa: FBT001
    for path, body in ((CHAT, chat(cache_hit_threshold=0)), (COMPLETION, completion(cold(), cache_hit_threshold=0.0))):
        assert set(reasons(await engine.send(path, body | streaming(stream))).values()) == {"length"}
        assert set(reasons(await engine.send(path, body | {"cache_hit_threshold": None})).values()) == {REFUSED}


@both
async def test_token_requests(engine: Side, strict: None, stream: bool) -> None:  # noqa: FBT001
    ids = cold(320)
    refused = await engine.send(GENERATE, generate(ids, **streaming(stream)))
    assert reasons(refused) == {0: REFUSED}
    assert tokens(refused) == 0
    ran = await engine.send(GENERATE, generate(ids, {"cache_hit_threshold": 0}, **streaming(stream)))
    assert (reasons(ran), tokens(ran)) == ({0: "length"}, 3)
    near = await engine.send(GENERATE, generate(ids, {"cache_hit_threshold": 0.9}, **streaming(stream)))
    assert reasons(near) == {0: "length"}
    if not stream:
        details = {"hit_tokens": 0, "prompt_tokens": 320, "threshold": 1.0, "preempted": 0}
        assert refused.body["kv_transfer_params"] == {"cache_threshold": details}


async def test_a_rendered_request_takes_its_threshold_along(engine: Side) -> None:
    rendered = (await engine.send(f"{CHAT}/render", chat(cache_hit_threshold=0.5))).body
    assert rendered["sampling_params"]["extra_args"] == {"cache_hit_threshold": 0.5}
    assert reasons(await engine.send(GENERATE, rendered)) == {0: REFUSED}


@both
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
async def test_several_answers_to_one_prompt(engine: Side, path: str, stream: bool) -> None:  # noqa: FBT001
    more = {"n": 3, "temperature": 1, "cache_hit_threshold": 0.5, **streaming(stream)}
    body = chat(**more) if path == CHAT else completion(cold(), **more)
    refused = await engine.send(path, body)
    assert reasons(refused) == {0: REFUSED, 1: REFUSED, 2: REFUSED}
    assert tokens(refused) == 0
    assert set(reasons(await engine.send(path, body | {"cache_hit_threshold": 0})).values()) == {"length"}


@both
async def test_several_prompts_end_each_in_its_own_way(engine: Side, stream: bool) -> None:  # noqa: FBT001
    warm = cold(128)
    await engine.send(COMPLETION, completion(warm))
    prompts = [cold(), warm, cold(), warm + cold(20)]
    mixed = await engine.send(COMPLETION, completion(prompts, cache_hit_threshold=0.6, **streaming(stream)))
    assert reasons(mixed) == {0: REFUSED, 1: "length", 2: REFUSED, 3: "length"}
    assert tokens(mixed) == 6


@both
async def test_log_probabilities_ids_and_echo_of_a_refused_request(engine: Side, stream: bool) -> None:  # noqa: FBT001
    more = {"cache_hit_threshold": 0.5, "return_token_ids": True, **streaming(stream)}
    spoken = await engine.send(CHAT, chat(logprobs=True, top_logprobs=2, **more))
    assert reasons(spoken) == {0: REFUSED}
    plain = await engine.send(COMPLETION, completion(cold(), logprobs=2, **more))
    assert reasons(plain) == {0: REFUSED}
    assert [one["token_ids"] for one in choices(plain) if "token_ids" in one] == [[]]
    echoed = await engine.send(COMPLETION, completion("echo " + words(), echo=True, cache_hit_threshold=0.5))
    assert reasons(echoed) == {0: REFUSED}


@both
async def test_structured_output_and_tools(engine: Side, stream: bool) -> None:  # noqa: FBT001
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    for more in ({"tools": TOOLS, "tool_choice": "none"}, {"response_format": schema}):
        refused = await engine.send(CHAT, chat(cache_hit_threshold=0.5, **more, **streaming(stream)))
        assert reasons(refused) == {0: REFUSED}, refused
        ran = await engine.send(CHAT, chat(cache_hit_threshold=0, **more, **streaming(stream)))
        assert set(reasons(ran).values()) <= {"length", "stop"}, ran


async def test_apis_that_could_not_say_so_are_never_refused(engine: Side, strict: None) -> None:
    asked = {"model": "tiny", "input": words(), "max_output_tokens": 3}
    response = await engine.send("/v1/responses", asked)
    assert response.status == 200, response
    assert response.body["usage"]["output_tokens"] > 0
    messages = {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": words()}]}
    message = await engine.send("/v1/messages", messages)
    assert message.status == 200, message
    assert message.body["usage"]["output_tokens"] > 0
    beams = await engine.send(COMPLETION, completion(cold(), use_beam_search=True, n=2, ignore_eos=False))
    assert REFUSED not in set(reasons(beams).values())


@pytest.mark.requirement("B9")
async def test_one_that_waits_for_its_prefix_runs(engine: Side) -> None:
    """Nine at once for eight places: the last is judged when one of them is done."""
    shared = cold(96)
    first = asyncio.create_task(engine.send(COMPLETION, completion(shared, max_tokens=150)))
    others = [asyncio.create_task(engine.send(COMPLETION, completion(cold(40), max_tokens=150))) for _ in range(7)]
    async with asyncio.timeout(60):  # all have their places by then, or the first ones are done
        while (await stats(engine))["running"] < PLUGIN.max_num_seqs and not first.done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    last = await engine.send(COMPLETION, completion(shared + cold(20), cache_hit_threshold=0.5))
    assert reasons(last) == {0: "length"}
    await asyncio.gather(first, *others)


# What is left behind


async def stats(engine: Side) -> dict[str, Any]:
    found: dict[str, Any] = (await engine.send("/v1/fleet/stats", method="GET")).body["ranks"]["0"]
    return found


async def settled(server: VllmServer, engine: Side) -> dict[str, Any]:
    """The engine's figures once it has nothing to do."""
    deadline = time.monotonic() + 120
    while True:
        found = await stats(engine)
        if found["running"] == found["waiting"] == 0 and found["blocks_free"] == found["blocks_total"] - 1:
            assert not found["faults"], found
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


@pytest.mark.requirement("B22")
async def test_refusals_of_an_idle_engine_leave_nothing(vllm_server: VllmServer, engine: Side) -> None:
    before = await settled(vllm_server, engine)
    for _ in range(200):
        assert reasons(await engine.send(COMPLETION, completion(cold(300), cache_hit_threshold=0.5))) == {0: REFUSED}
    after = await settled(vllm_server, engine)
    assert after["counts"]["rejected"] - before["counts"].get("rejected", 0) == 200
    assert reasons(await engine.send(COMPLETION, completion(cold(300)))) == {0: "length"}


async def test_vllms_own_metrics_count_refusals_and_keep_their_times(engine: Side) -> None:
    after = before = await engine.metrics()

    def grown(name: str) -> float:
        return sum(value - before.get(key, 0) for key, value in after.items() if key.startswith(f"vllm:{name}"))

    await engine.send(COMPLETION, completion(cold(), cache_hit_threshold=0.5))
    async with asyncio.timeout(60):
        while not grown(refused := 'request_success_total{engine="0",finished_reason="cache_threshold"'):
            after = await engine.metrics()
    assert grown(refused) == 1
    assert grown("generation_tokens_total{") == grown("prefix_cache_queries_total{") == 0
    for name in ("request_queue_time", "request_prefill_time", "request_inference_time", "e2e_request_latency"):
        assert 0 <= grown(f"{name}_seconds_sum") < 60, name  # no time of day


@pytest.mark.parametrize("count", [250, pytest.param(2000, marks=pytest.mark.slow)])
async def test_mixed_requests_leave_nothing_behind(vllm_server: VllmServer, engine: Side, count: int) -> None:
    """Random thresholds, prompts, APIs, several answers, streams; some clients leave early. The policy changes too."""
    chance = random.Random(count)
    bases = [cold(200) for _ in range(6)]
    outcomes: Counter[str] = Counter()
    limit, ended = asyncio.Semaphore(24), asyncio.Event()
    began = time.monotonic()

    async def one() -> None:
        async with limit:
            outcomes[await mixed(engine, chance, bases)] += 1

    async def change() -> None:
        while not ended.is_set():
            await asyncio.sleep(chance.random())
            value = chance.choice([0.0, 0.0, 0.3])
            await asyncio.to_thread(put_policy, vllm_server, threshold=value, reject_below=chance.random())

    changing = asyncio.create_task(change())
    await asyncio.gather(*(one() for _ in range(count)))
    ended.set()
    await changing
    put_policy(vllm_server)
    told = await settled(vllm_server, engine)
    print(f"{count} mixed requests in {time.monotonic() - began:.1f} s: {dict(outcomes)}, {told['counts']}")
    assert sum(outcomes.values()) == count
    assert outcomes["answered"] > count / 2
    assert outcomes["left"] > 0
    assert told["counts"]["rejected"] > 0


async def mixed(engine: Side, chance: random.Random, bases: list[list[int]]) -> str:
    prompt = chance.choice(bases)[: chance.randrange(1, 200)] + cold(chance.randrange(80))
    more: dict[str, Any] = {"max_tokens": chance.randrange(1, 24), "n": chance.choice([1, 1, 1, 2]), "temperature": 1}
    more |= {"cache_hit_threshold": chance.choice([None, 0, 0.2, 0.5, 0.9, 1.0])}
    more |= {"vllm_xargs": {"cachefleet_resumable": 1}} if chance.random() < 0.3 else {}
    more |= streaming(chance.random() < 0.5)
    path, body = (CHAT, chat(**more)) if chance.random() < 0.2 else (COMPLETION, completion(prompt, **more))
    patience = chance.uniform(0.01, 0.2) if chance.random() < 0.1 else 60
    try:
        answer = await asyncio.wait_for(engine.send(path, body), patience)
    except TimeoutError:
        assert patience < 1, "an answer did not come"
        return "left"
    assert set(reasons(answer)) == set(range(more["n"]))
    assert set(reasons(answer).values()) <= {"length", REFUSED}
    return "answered"
