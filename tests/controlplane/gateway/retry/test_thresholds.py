"""Thresholds in a fleet of whole workers: the caller's own is its own, the pool's is nobody's business but ours."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.controlplane.gateway.harness import chat, engine, events
from tests.controlplane.gateway.retry.test_failover import Scripted, serving
from tests.controlplane.gateway.roles import CHAT, COMPLETION, FIELD, Fleet, gated
from tests.controlplane.waiting import value
from tests.fakes.engine import FakeEngine
from tests.fakes.gate import MESSAGE

TEXT = "a conversation that is long enough to fill a number of blocks of the cache, " * 2
COMPLETIONS: dict[str, Any] = {"model": "fake", "prompt": TEXT, "max_tokens": 4}
REQUESTS = [(CHAT, chat(TEXT)), (COMPLETION, COMPLETIONS)]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
apis = pytest.mark.parametrize(("path", "body"), REQUESTS, ids=["chat", "completion"])


def ends(body: bytes, *, stream: bool) -> list[str]:
    """The finish reasons that a client sees."""
    parts = [json.loads(event) for event in events(body)[:-1]] if stream else [json.loads(body)]
    return [choice["finish_reason"] for part in parts for choice in part["choices"] if choice["finish_reason"]]


async def warmed(fleet: Fleet, path: str, body: dict[str, Any]) -> str:
    """Ask once and let all report; the worker that holds the prompt now."""
    status, headers, _ = await fleet.gate.post(path, body)
    assert status == 200
    fleet.report()
    return headers["x-cachefleet-worker"]


def forget(fleet: Fleet, worker: str) -> FakeEngine:
    """Its cache is emptied, and nobody is told."""
    found = fleet.engine(worker)
    assert found.reset_prefix_cache()
    return found


@pytest.mark.parametrize("value", ["-0.01", "1.01", "true", '"0.5"', "1e309", "[]", "{}"])
@apis
async def test_b3_what_is_no_ratio_is_a_400(path: str, body: dict[str, Any], value: str) -> None:
    async with engine() as one, gated(one) as fleet:
        for where in (f'"{FIELD}": {value}', f'"vllm_xargs": {{"{FIELD}": {value}}}'):
            data = json.dumps(body)[:-1] + f", {where}}}"
            status, _, answer = await fleet.gate.post(path, data.encode())
            error = json.loads(answer)["error"]
            assert (status, error["message"], error["type"]) == (400, MESSAGE, "invalid_request_error")
        nan = (json.dumps(body)[:-1] + f', "{FIELD}": NaN}}').encode()
        assert (await fleet.gate.post(path, nan))[0] == 400
        assert fleet.sent("demo-0") == []


async def test_b2_other_apis_have_no_such_field() -> None:
    async with engine() as one, gated(one) as fleet:
        messages = {"model": "fake", "max_tokens": 3, "messages": [{"role": "user", "content": TEXT}]}
        for path, body in (("/v1/messages", messages), ("/v1/responses", {"model": "fake", "input": TEXT})):
            one.gate(0.9)
            status, _, answer = await fleet.gate.post(path, body | {FIELD: 7})
            assert status == 200
            assert b"cache_threshold" not in answer


@both
@apis
async def test_b6_b7_a_callers_own_threshold_is_answered_by_the_engine(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    async with engine() as one, engine() as two, gated(one, two) as fleet:
        for field in ({FIELD: 0.9}, {"vllm_xargs": {FIELD: 0.9}}):
            status, _, answer = await fleet.gate.settled(path, body | field | {"stream": stream})
            assert status == 200
            assert ends(answer, stream=stream) == ["cache_threshold"]
            assert len(fleet.attempts) == 1
            if stream:
                assert events(answer)[-1] == b"[DONE]"
            else:
                assert json.loads(answer)["usage"]["completion_tokens"] == 0
                assert json.loads(answer)["kv_transfer_params"]["cache_threshold"]["hit_tokens"] == 0
        fleet.gate.records.clear()
        assert ends((await fleet.gate.settled(path, body | {FIELD: 0}))[2], stream=False) == ["length"]


async def test_b2_null_is_absent() -> None:
    async with engine() as one, gated(one) as fleet:
        one.gate(1.0)
        _, _, answer = await fleet.gate.chat(TEXT, **{FIELD: None})
        assert ends(answer, stream=False) == ["length"]


async def test_b5_the_engine_judges_a_callers_threshold_strictly() -> None:
    prompt = list(range(64))
    async with engine(num_blocks=600) as one, gated(one) as fleet:
        info = {"model": "fake", "prompt": prompt, "max_tokens": 1}
        await fleet.gate.post(COMPLETION, info | {"prompt": prompt[:16]})
        for own, reason in ((0.25, "length"), (0.2500001, "cache_threshold")):
            one.reset_prefix_cache()
            await fleet.gate.post(COMPLETION, info | {"prompt": prompt[:17]})
            _, _, answer = await fleet.gate.post(COMPLETION, info | {FIELD: own})
            assert ends(answer, stream=False) == [reason]


@both
@apis
async def test_a_promise_that_holds_goes_with_the_pools_threshold(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    async with engine() as one, engine() as two, gated(one, two) as fleet:
        holder = await warmed(fleet, path, body)
        assert fleet.sent(holder)[-1][FIELD] == 0
        status, headers, answer = await fleet.gate.settled(path, body | {"stream": stream})
        assert (status, headers["x-cachefleet-worker"]) == (200, holder)
        assert ends(answer, stream=stream) == ["length"]
        assert fleet.sent(holder)[-1][FIELD] == 0.5
        assert [attempt.threshold for attempt in fleet.gate.records[-1].attempts] == [0.5]


@both
@apis
async def test_a_refusal_is_a_call_elsewhere_and_no_client_sees_it(
    path: str, body: dict[str, Any], *, stream: bool
) -> None:
    async with engine() as one, engine() as two, gated(one, two) as fleet:
        holder = await warmed(fleet, path, body)
        forget(fleet, holder)
        status, headers, answer = await fleet.gate.settled(path, body | {"stream": stream})
        assert status == 200
        assert ends(answer, stream=stream) == ["length"]
        assert b"cache_threshold" not in answer
        first, second = fleet.gate.records[-1].attempts
        assert (first.worker, first.outcome, first.threshold) == (holder, "gate_refused", 0.5)
        assert (second.worker, second.threshold) == (headers["x-cachefleet-worker"], 0)
        assert fleet.sent(second.worker)[-1][FIELD] == 0
        assert value(fleet.gate.metrics, "gate_refusals_total") == 1
        assert value(fleet.gate.metrics, "attempt_retries_total", reason="gate_refused") == 0
        assert not any(worker.backing_off for worker in fleet.gate.fleet.view().workers)
        assert fleet.gate.fleet.view().inflight_requests == 0


async def test_what_an_engine_refuted_is_not_promised_to_the_next_one() -> None:
    async with engine() as one, engine() as two, gated(one, two) as fleet:
        holder = await warmed(fleet, CHAT, chat(TEXT))
        forget(fleet, holder)
        await fleet.gate.settled_chat(TEXT)
        assert fleet.attempts[0][::2] == (holder, "gate_refused")
        assert fleet.attempts[1][0] != holder
        found = json.loads((await fleet.gate.settled("/v1/route", chat(TEXT)))[2])
        assert {score["worker"]: score["matched_blocks"] for score in found["candidates"]}[holder] == 0


async def test_a_lone_worker_that_refuses_runs_it_with_the_gate_off() -> None:
    async with engine() as one, gated(one) as fleet:
        await warmed(fleet, CHAT, chat(TEXT))
        forget(fleet, "demo-0")
        assert ends((await fleet.gate.chat(TEXT, stream=True))[2], stream=True) == ["length"]
        assert [body[FIELD] for body in fleet.sent("demo-0")] == [0, 0.5, 0]


async def test_usage_counts_the_attempt_that_answered_alone() -> None:
    async with engine() as one, gated(one) as fleet:
        await warmed(fleet, CHAT, chat(TEXT))
        prompt_tokens = fleet.gate.records[-1].prompt_tokens
        forget(fleet, "demo-0")
        _, _, answer = await fleet.gate.settled_chat(TEXT)
        assert json.loads(answer)["usage"]["prompt_tokens"] == prompt_tokens
        assert (fleet.gate.records[-1].cached_tokens, fleet.gate.records[-1].completion_tokens) == (0, 4)
        counted = value(fleet.gate.metrics, "prompt_tokens_total", model="fake")
        assert counted == 2 * prompt_tokens


async def test_who_could_be_handed_back_half_done_is_held_to_the_engines_policy() -> None:
    """With a threshold of its own a request counts as marked."""
    async with engine() as one, gated(one) as fleet:
        more: dict[str, Any] = {"tools": TOOLS, "tool_choice": "none"}
        await warmed(fleet, CHAT, chat(TEXT, **more))
        one.gate(0.5)
        forget(fleet, "demo-0")
        assert ends((await fleet.gate.settled_chat(TEXT, **more))[2], stream=False) == ["length"]
        assert [body.get(FIELD) for body in fleet.sent("demo-0")] == [0, None, 0]
        assert [attempt[2] for attempt in fleet.attempts] == ["gate_refused", "answered"]


@both
async def test_a_policy_the_gateway_does_not_know_of_is_not_the_clients_business(*, stream: bool) -> None:
    async with engine() as one, gated(one, threshold=0.0) as fleet:
        one.gate(1.0)
        _, _, answer = await fleet.gate.chat(TEXT, stream=stream)
        assert ends(answer, stream=stream) == ["length"]
        assert [body.get(FIELD) for body in fleet.sent("demo-0")] == [None, 0]


@both
async def test_without_any_threshold_bodies_say_nothing_of_it(*, stream: bool) -> None:
    async with engine() as one, gated(one, threshold=0.0) as fleet:
        await fleet.gate.settled_chat(TEXT, stream=stream)
        assert FIELD not in fleet.sent("demo-0")[0]
        assert len(fleet.attempts) == 1


class Mixed(Scripted):
    """Refuses the second of two choices where it may, in a stream after the first has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.thresholds: list[Any] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.thresholds.append(body.get(FIELD))
        last = "length" if body.get(FIELD) == 0 else "cache_threshold"
        said = [self._choice(0, "one", "length"), self._choice(1, "" if last != "length" else "two", last)]
        if not body.get("stream"):
            return web.json_response({"choices": said, "usage": {"prompt_tokens": 1}})
        parts = [json.dumps({"choices": [choice]}) for choice in said]
        data = "".join(f"data: {part}\n\n" for part in [*parts, "[DONE]"])
        return web.Response(body=data.encode(), content_type="text/event-stream")

    def _choice(self, index: int, text: str, finish: str) -> dict[str, Any]:
        return {"index": index, "text": text, "finish_reason": finish, "token_ids": [1] if text else []}


@both
async def test_b17_a_mixture_of_refused_and_answered_choices_is_refused(*, stream: bool) -> None:
    prompt = list(range(64))
    body = {"model": "fake", "prompt": prompt, "max_tokens": 2, "n": 2, "temperature": 1, "stream": stream}
    mixed = Mixed()
    async with engine() as one, serving(mixed), gated(one) as fleet:
        await warmed(fleet, COMPLETION, body | {"stream": False})
        # The same worker, as its agent has announced it, from now on answers as scripted.
        one.url = mixed.url
        fleet.declare()
        _, _, answer = await fleet.gate.settled(COMPLETION, body)
        assert sorted(ends(answer, stream=stream)) == ["length", "length"]
        assert mixed.thresholds == [None, 0]
        assert [attempt.threshold for attempt in fleet.gate.records[-1].attempts] == [0.5, 0]


async def test_b17_a_refused_streams_beginning_is_held_back_wherever_it_is_cut() -> None:
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    last = {"index": 0, "delta": {"content": ""}, "finish_reason": "cache_threshold", "stop_reason": "grüße"}
    said = {"index": 0, "delta": {"content": "grüße"}, "finish_reason": "stop", "token_ids": [1]}
    refused = _stream(role, last)

    class Cuts(Scripted):
        cut = 0

        async def answer(self, request: web.Request) -> web.StreamResponse:
            body = await request.json()
            data = _stream(role, said) if body.get(FIELD) == 0 else refused
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            await response.write(data[: self.cut])
            await asyncio.sleep(0)
            await response.write(data[self.cut :])
            return response

    cuts = Cuts()
    async with serving(cuts), gated(cuts, threshold=0.0) as fleet:
        for cut in range(1, len(refused)):
            cuts.cut = cut
            status, _, body = await fleet.gate.settled_chat("x", stream=True)
            assert (status, ends(body, stream=True)) == (200, ["stop"])
            assert b"cache_threshold" not in body
            assert [attempt[2] for attempt in fleet.attempts] == ["gate_refused", "finished"]


def _stream(*choices: dict[str, Any]) -> bytes:
    parts = [json.dumps({"choices": [choice]}, ensure_ascii=False) for choice in choices]
    return "".join(f"data: {part}\n\n" for part in [*parts, "[DONE]"]).encode()
