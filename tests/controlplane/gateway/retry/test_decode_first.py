"""Fleets of Prefill and Decode pools: who computes a prompt, who answers, and what a client sees of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from cachefleet_controlplane.gateway.retry.exchange import Exchange
from cachefleet_controlplane.gateway.retry.prefill import PrefillAttempt, prefill_body
from cachefleet_controlplane.gateway.retry.worker_choice import WorkerChoice
from tests.controlplane.gateway.harness import chat, engine, events
from tests.controlplane.gateway.retry.test_failover import Reset, Scripted, serving
from tests.controlplane.gateway.retry.test_thresholds import COMPLETIONS, TEXT, ends
from tests.controlplane.gateway.roles import CHAT, COMPLETION, FIELD, nixl, split
from tests.controlplane.leftovers import collector_off, gone
from tests.controlplane.waiting import until, value

ASKED = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
ANSWER, PREFILL = "answer", "prefill"
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
apis = pytest.mark.parametrize(("path", "body"), [(CHAT, chat(TEXT)), (COMPLETION, COMPLETIONS)], ids=["chat", "text"])
HOOK = {"x-cache-threshold-finish-reason": "true"}


def done(*, stream: bool) -> str:
    return "finished" if stream else "answered"


@both
@apis
async def test_b16_without_the_field_prefill_comes_first(path: str, body: dict[str, Any], *, stream: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        status, headers, answer = await fleet.gate.settled(path, body | {"stream": stream})
        assert (status, headers["x-cachefleet-worker"]) == (200, "decode-0")
        assert ends(answer, stream=stream) == ["length"]
        assert fleet.attempts == [("prefill-0", PREFILL, "answered"), ("decode-0", ANSWER, done(stream=stream))]
        record = fleet.gate.records[-1]
        assert (record.verdict, record.reason, record.worker) == ("prefill_first", "split_roles", "decode-0")
        assert value(fleet.gate.metrics, "prefill_attempts_total", outcome="prefilled") == 1


async def test_nothing_of_a_request_with_a_prefill_attempt_stays_until_a_garbage_collection() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        with collector_off():
            assert (await fleet.gate.chat(TEXT))[0] == 200
            await gone(Exchange, WorkerChoice, PrefillAttempt)


async def test_an_open_stream_keeps_nothing_of_its_prefill_attempt() -> None:
    async with nixl() as one, nixl(inter_token_seconds=30) as two, split([one], [two]) as fleet:
        body = chat(TEXT, stream=True)
        with collector_off():
            async with fleet.gate.http.post(fleet.gate.url + CHAT, json=body) as answer:
                assert await answer.content.readany()
                await gone(PrefillAttempt)
                assert fleet.engine("decode-0").worker.scheduler.running


async def test_b16_the_prefill_attempt_is_for_one_token_and_its_parameters_reach_the_decode_attempt_unchanged() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        more = {"min_tokens": 2, "n": 2, "temperature": 1, "max_completion_tokens": 4, FIELD: 0.7}
        await fleet.gate.chat(TEXT, **more, stream=True, stream_options={"include_usage": True})
        (prefill,), (*_, final) = fleet.sent("prefill-0"), fleet.sent("decode-0")
        assert prefill["kv_transfer_params"] == ASKED
        told = {name: prefill.get(name) for name in ("max_tokens", "max_completion_tokens", "n", "stream", FIELD)}
        assert told == {"max_tokens": 1, "max_completion_tokens": 1, "n": 1, "stream": False, FIELD: 0}
        assert not {"min_tokens", "stream_options", "return_token_ids", "vllm_xargs"} & prefill.keys()
        assert prefill["cache_salt"] == final["cache_salt"]
        assert (final[FIELD], final["n"], final["min_tokens"], final["stream"]) == (0, 2, 2, True)
        params = final["kv_transfer_params"]
        assert (params["do_remote_prefill"], params["remote_port"], params["tp_size"]) == (True, 5600, 1)


def test_a_marked_request_s_prefill_attempt_is_not_marked() -> None:
    body, members = prefill_body(b'{"model":"m","vllm_xargs":{"cachefleet_resumable":1,"x":2},"min_tokens":1}')
    assert json.loads(body)["vllm_xargs"] == {"x": 2}
    assert members == len(json.loads(body))
    assert "vllm_xargs" not in json.loads(prefill_body(b'{"vllm_xargs":{"cachefleet_resumable":1}}')[0])


@both
@apis
async def test_b16_what_decode_holds_needs_no_prefill_attempt(path: str, body: dict[str, Any], *, stream: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.5) as fleet:
        await fleet.gate.settled(path, body)
        fleet.report()
        asked = len(fleet.sent("prefill-0"))
        for field in ({}, {FIELD: 0.9}, {"vllm_xargs": {FIELD: 0.9}}):
            _, _, answer = await fleet.gate.settled(path, body | field | {"stream": stream})
            assert ends(answer, stream=stream) == ["length"]
            assert fleet.attempts == [("decode-0", ANSWER, done(stream=stream))]
        assert [sent[FIELD] for sent in fleet.sent("decode-0")[-3:]] == [0.5, 0.9, 0.9]
        assert len(fleet.sent("prefill-0")) == asked
        assert fleet.gate.records[-1].verdict == "route"


async def test_b15_a_worker_is_sent_nothing_that_vllm_does_not_know() -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.5) as fleet:
        await fleet.gate.chat(TEXT)
        ours = {"kv_transfer_params", FIELD, "cache_salt", "max_completion_tokens", "n", "stream", "return_token_ids"}
        for worker in ("prefill-0", "decode-0"):
            for body in fleet.sent(worker):
                assert body.keys() - ours - {"vllm_xargs"} <= chat(TEXT).keys()


async def test_b14_a_small_tail_is_computed_by_the_decode_worker() -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.9) as fleet:
        await fleet.gate.settled_chat(TEXT)
        fleet.report()
        assert (await fleet.gate.settled_chat(TEXT))[0] == 200
        record = fleet.gate.records[-1]
        assert fleet.attempts == [("decode-0", ANSWER, "answered")]
        assert record.cached_tokens is not None
        assert 0 < record.prompt_tokens - record.cached_tokens <= 16


async def test_b16_zero_is_a_value_decode_runs_it_whole() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        assert ends((await fleet.gate.settled_chat(TEXT, **{FIELD: 0}))[2], stream=False) == ["length"]
        assert fleet.attempts == [("decode-0", ANSWER, "answered")]
        assert fleet.sent("prefill-0") == []


@both
async def test_b16_what_the_index_knows_to_be_too_little_is_not_tried(*, stream: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        fleet.report()
        _, _, answer = await fleet.gate.settled_chat(TEXT, stream=stream, **{FIELD: 0.5})
        assert ends(answer, stream=stream) == ["length"]
        assert fleet.attempts == [("prefill-0", PREFILL, "answered"), ("decode-0", ANSWER, done(stream=stream))]
        record = fleet.gate.records[-1]
        assert (record.verdict, record.reason) == ("prefill_first", "below_threshold")


@both
@apis
async def test_b16_b17_a_refusal_is_followed_by_prefill_and_the_client_sees_one_answer(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    """Nobody has reported, so decode is tried; the engine knows better."""
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        plain = (await fleet.gate.settled(path, body | {"stream": stream, FIELD: 0}))[2]
        two.reset_prefix_cache()
        status, _, answer = await fleet.gate.settled(path, body | {"stream": stream, FIELD: 0.5})
        assert (status, b"cache_threshold" in answer) == (200, False)
        assert _shapes(answer, stream=stream) == _shapes(plain, stream=stream)
        assert _text(answer, stream=stream) == _text(plain, stream=stream)
        assert fleet.attempts == [
            ("decode-0", ANSWER, "gate_refused"),
            ("prefill-0", PREFILL, "answered"),
            ("decode-0", ANSWER, done(stream=stream)),
        ]
        assert [sent[FIELD] for sent in fleet.sent("decode-0")[1:]] == [0.5, 0]
        record = fleet.gate.records[-1]
        assert (record.verdict, record.reason) == ("prefill_first", "gate_refused")


async def test_b16_an_index_that_was_wrong_is_corrected() -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.5) as fleet:
        await fleet.gate.settled_chat(TEXT)
        fleet.report()
        two.reset_prefix_cache()
        assert ends((await fleet.gate.settled_chat(TEXT))[2], stream=False) == ["length"]
        assert [attempt[1:] for attempt in fleet.attempts] == [
            (ANSWER, "gate_refused"),
            (PREFILL, "answered"),
            (ANSWER, "answered"),
        ]


@both
async def test_usage_is_the_decode_attempts_alone(*, stream: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        await fleet.gate.settled_chat(TEXT, stream=stream)
        record = fleet.gate.records[-1]
        assert (record.cached_tokens, record.completion_tokens) == (record.prompt_tokens - 1, 4)
        assert value(fleet.gate.metrics, "prompt_tokens_total", model="fake") == record.prompt_tokens
        assert fleet.gate.fleet.view().inflight_requests == 0


async def test_a_connector_over_a_shared_store_needs_no_parameters() -> None:
    async with engine() as one, engine() as two, split([one], [two]) as fleet:
        assert (await fleet.gate.settled_chat(TEXT))[0] == 200
        assert [attempt[1] for attempt in fleet.attempts] == [PREFILL, ANSWER]
        assert "kv_transfer_params" not in fleet.sent("decode-0")[0]


async def test_prefill_goes_where_most_of_the_prompt_is() -> None:
    async with nixl() as one, nixl() as two, nixl() as three, split([one, two], [three]) as fleet:
        await fleet.gate.settled_chat(TEXT)
        holder = fleet.attempts[0][0]
        fleet.report()
        for _ in range(3):
            await fleet.gate.settled_chat(TEXT + " and more")
            assert fleet.attempts[0][0] == holder


async def test_whole_workers_answer_whole_requests() -> None:
    async with nixl() as one, nixl() as two, split([one], [], both=[two]) as fleet:
        assert (await fleet.gate.settled_chat(TEXT))[0] == 200
        assert fleet.attempts == [("both-0", ANSWER, "answered")]


async def test_several_prompts_and_other_apis_have_no_prefill_attempt() -> None:
    async with nixl() as one, nixl() as two, split([one], [two], threshold=0.5) as fleet:
        several = {"model": "fake", "prompt": [[1, 2, 3], [4, 5, 6]], "max_tokens": 2}
        assert ends((await fleet.gate.post(COMPLETION, several | {FIELD: 0.9}))[2], stream=False) == ["length"] * 2
        two.gate(0.9)
        messages = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
        for path, body in (("/v1/messages", messages), ("/v1/responses", {"model": "fake", "input": TEXT})):
            assert (await fleet.gate.post(path, body))[0] == 200
        assert fleet.sent("prefill-0") == []


async def test_a_decision_alone_says_that_prefill_comes_first() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        found = json.loads((await fleet.gate.post("/v1/route", chat(TEXT)))[2])
        assert (found["verdict"], found["reason"], found["worker"]) == ("prefill_first", "split_roles", "decode-0")


# Errors


async def test_b18_a_decode_error_is_relayed_and_there_is_no_prefill_attempt() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        two.fail_next(500, 2)
        status, _, body = await fleet.gate.post(COMPLETION, {"model": "fake", "prompt": [1] * 40, FIELD: 0.5})
        assert (status, json.loads(body)["error"]["message"]) == (500, "Injected failure")
        assert fleet.sent("prefill-0") == []
        assert (await fleet.gate.chat(TEXT, n=0, **{FIELD: 0}))[0] == 400
        assert fleet.sent("prefill-0") == []


async def test_b18_an_answer_that_is_no_json_is_a_500() -> None:
    class Garbled(Scripted):
        async def answer(self, request: web.Request) -> web.StreamResponse:
            return web.Response(body=b"{nonsense", content_type="application/json")

    garbled = Garbled()
    async with nixl() as one, serving(garbled), split([one], [garbled]) as fleet:
        status, _, body = await fleet.gate.chat(TEXT, **{FIELD: 0.5})
        assert (status, json.loads(body)["error"]["type"]) == (500, "server_error")
        assert (garbled.asked, fleet.sent("prefill-0")) == (1, [])


@both
async def test_b18_a_prefill_error_is_relayed_and_there_is_no_decode_attempt(*, stream: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        one.fail_next(500)
        body = {"model": "fake", "prompt": [1] * 40, "stream": stream}
        status, _, answer = await fleet.gate.settled(COMPLETION, body)
        assert (status, json.loads(answer)["error"]["message"]) == (500, "Injected failure")
        assert fleet.sent("decode-0") == []
        one.fail_next(400)
        assert (await fleet.gate.settled(COMPLETION, body))[0] == 400
        assert fleet.sent("decode-0") == []
        assert fleet.gate.records[-1].status == 400


@both
async def test_b18_a_prefill_worker_that_is_gone_is_a_502_when_all_are(*, stream: bool) -> None:
    async with nixl() as one, nixl() as two, nixl() as three, split([one, two], [three]) as fleet:
        await one.crash()
        for _ in range(3):
            assert (await fleet.gate.settled_chat(TEXT, stream=stream))[0] == 200
        await two.crash()
        answered = len(fleet.sent("decode-0"))
        status, _, body = await fleet.gate.settled_chat(TEXT, stream=stream)
        assert (status, json.loads(body)["error"]["type"]) == (502, "server_error")
        assert len(fleet.sent("decode-0")) == answered
        assert {attempt[:2] for attempt in fleet.attempts} == {("prefill-0", PREFILL), ("prefill-1", PREFILL)}
        assert fleet.gate.fleet.view().inflight_requests == 0


async def test_b18_a_prefill_worker_that_drops_connections_is_a_502() -> None:
    async with serving(Reset()) as one, nixl() as two, split([one], [two]) as fleet:
        status, _, _ = await fleet.gate.post(COMPLETION, {"model": "fake", "prompt": [1] * 40})
        assert status == 502
        assert fleet.sent("decode-0") == []


async def test_no_ready_prefill_worker_is_a_503_with_its_reason() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        fleet.declare(ready=["decode"])
        status, headers, body = await fleet.gate.settled_chat(TEXT)
        assert (status, headers["retry-after"]) == (503, "2")
        assert "prefill node is not ready" in json.loads(body)["error"]["message"]
        record = fleet.gate.records[-1]
        assert (record.verdict, record.reason, record.status) == ("reject", "no_prefill_worker", 503)


@pytest.mark.parametrize("ready", [True, False])
async def test_b18_no_decode_worker_is_a_503_and_prefill_workers_do_not_answer(*, ready: bool) -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        fleet.declare(ready=["prefill", "decode"] if ready else ["prefill"])
        await two.crash()
        status, headers, body = await fleet.gate.chat(TEXT, **{FIELD: 0})
        error = json.loads(body)["error"]
        assert (status, error["type"], headers["retry-after"]) == (503, "server_error", "2")
        assert error["message"].startswith("The decode node is not ready.")
        assert fleet.sent("prefill-0") == []


async def test_b18_bad_json_is_a_400() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        status, _, body = await fleet.gate.post(CHAT, b"{nonsense")
        assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")


async def test_a_decode_worker_that_dies_takes_the_blocks_along() -> None:
    """They are computed again, which the Prefill worker's own cache makes cheap, and another worker answers."""
    async with nixl() as one, nixl() as two, nixl() as three, split([one], [two, three]) as fleet:
        await two.crash()
        for number in range(3):
            assert (await fleet.gate.settled_chat(f"{TEXT} {number}"))[0] == 200
        long = next(record.attempts for record in fleet.gate.records if len(record.attempts) > 2)
        assert [(attempt.kind, attempt.outcome) for attempt in long] == [
            (PREFILL, "answered"),
            (ANSWER, "unreachable"),
            (PREFILL, "answered"),
            (ANSWER, "answered"),
        ]


@both
async def test_what_is_handed_back_is_computed_by_a_prefill_worker_again(*, stream: bool) -> None:
    decode = [nixl(plugin=True), nixl(plugin=True)]
    async with nixl() as one, decode[0] as two, decode[1] as three, split([one], decode) as fleet:
        more: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "stream": stream}
        whole = (await fleet.gate.settled_chat(TEXT, **more))[2]
        for worker in (two, three):
            worker.hand_back(5)
        spliced = (await fleet.gate.settled_chat(TEXT, **more))[2]
        assert _text(spliced, stream=stream) == _text(whole, stream=stream)
        outcomes = [attempt[1:] for attempt in fleet.attempts]
        assert outcomes[:3] == [(PREFILL, "answered"), (ANSWER, "handed_back"), (PREFILL, "answered")]
        assert outcomes[-1] == (ANSWER, done(stream=stream))


async def test_a_client_that_goes_frees_the_prefill_worker() -> None:
    async with nixl(prefill_tokens_per_second=10) as one, nixl() as two, split([one], [two]) as fleet:
        asking = asyncio.create_task(fleet.gate.chat(TEXT))
        await until(lambda: one.worker.scheduler.busy)
        asking.cancel()
        await until(lambda: bool(fleet.gate.records))
        await until(lambda: not one.worker.scheduler.busy)
        assert fleet.attempts == [("prefill-0", PREFILL, "cancelled")]
        assert fleet.gate.fleet.view().inflight_requests == 0


# The hook of llm-d's simulator


@both
async def test_b19_the_hook_goes_with_the_first_attempt_alone(*, stream: bool) -> None:
    async with nixl(threshold_hook=True) as one, nixl(threshold_hook=True) as two, split([one], [two]) as fleet:
        status, _, answer = await fleet.gate.settled(CHAT, chat(TEXT, stream=stream, **{FIELD: 0}), **HOOK)
        assert (status, ends(answer, stream=stream)) == (200, ["length"])
        assert [attempt[1:] for attempt in fleet.attempts] == [
            (ANSWER, "gate_refused"),
            (PREFILL, "answered"),
            (ANSWER, done(stream=stream)),
        ]
        hooked = [
            {name.lower() for name in seen.headers} & HOOK.keys()
            for worker in ("decode-0", "prefill-0")
            for seen in fleet.seen(worker)
        ]
        assert hooked == [HOOK.keys(), set(), set()]


@pytest.mark.parametrize("said", ["false", "1", "TRUE", ""])
async def test_b19_other_values_mean_nothing(said: str) -> None:
    async with nixl(threshold_hook=True) as one, nixl(threshold_hook=True) as two, split([one], [two]) as fleet:
        await fleet.gate.settled(CHAT, chat(TEXT, **{FIELD: 0}), **{"x-cache-threshold-finish-reason": said})
        assert fleet.attempts == [("decode-0", ANSWER, "answered")]
        assert not any("x-cache-threshold-finish-reason" in map(str.lower, s.headers) for s in fleet.seen("decode-0"))


async def test_b20_without_caching_on_the_decode_side_nothing_is_refused() -> None:
    async with nixl() as one, nixl(prefix_caching=False) as two, split([one], [two]) as fleet:
        assert ends((await fleet.gate.settled_chat(TEXT, **{FIELD: 1.0}))[2], stream=False) == ["length"]
        assert fleet.attempts == [("decode-0", ANSWER, "answered")]


async def test_b20_a_prefill_worker_s_own_policy_does_not_refuse_its_attempts() -> None:
    async with nixl() as one, nixl() as two, split([one], [two]) as fleet:
        one.gate(1.0)
        assert (await fleet.gate.settled_chat(TEXT))[0] == 200
        assert fleet.attempts[0] == ("prefill-0", PREFILL, "answered")


def _parts(body: bytes, *, stream: bool) -> list[dict[str, Any]]:
    return [json.loads(part) for part in (events(body)[:-1] if stream else [body])]


def _shapes(body: bytes, *, stream: bool) -> list[list[str]]:
    return [sorted(part) for part in _parts(body, stream=stream)]


def _text(body: bytes, *, stream: bool) -> str:
    said = []
    for part in _parts(body, stream=stream):
        for choice in part["choices"]:
            spoken = choice.get("delta") or choice.get("message") or {}
            said.append(choice.get("text") or spoken.get("content") or "")
    return "".join(said)
