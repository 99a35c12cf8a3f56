"""What a client gets is what the worker says, byte for byte, apart from ids and times."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.controlplane.gateway.cases import (
    ANSWERED,
    CHAT,
    COMPLETIONS,
    OTHERS,
    POOLED,
    REFUSED,
    RESPONSES,
    Case,
    timeless,
)
from tests.controlplane.gateway.harness import MODEL, SALT, Front, direct, engine, front
from tests.fakes.engine import FakeEngine


@pytest.fixture
async def worker() -> AsyncIterator[FakeEngine]:
    async with engine(multibyte=True, max_model_len=1024, pooling=True) as running:
        yield running


@pytest.fixture
async def gate(worker: FakeEngine) -> AsyncIterator[Front]:
    async with front([worker]) as made:
        yield made


@pytest.mark.parametrize("again", [False, True], ids=["first", "fingerprint-known"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_answers_are_the_worker_s_own(gate: Front, worker: FakeEngine, path: str, *, again: bool) -> None:
    for _, name, body in (case for case in ANSWERED if case[0] == path):
        asked = {"model": MODEL} | body
        if not again:
            gate.forget_fingerprints()
        await direct(worker, path, asked | {"cache_salt": SALT})  # so that both find the same in cache
        status, expected = await direct(worker, path, asked | {"cache_salt": SALT})
        got_status, _, got = await gate.post(path, asked)
        assert status == 200, (name, expected)
        assert (name, got_status, timeless(got)) == (name, status, timeless(expected))


@pytest.mark.parametrize("case", [*OTHERS, *POOLED], ids=lambda case: f"{case[0]} {case[1]}")
async def test_answers_of_other_apis_are_the_worker_s_own(gate: Front, worker: FakeEngine, case: Case) -> None:
    path, name, body = case
    asked = {"model": MODEL} | body
    await direct(worker, path, asked | {"cache_salt": SALT})  # so that both find the same in cache
    status, expected = await direct(worker, path, asked | {"cache_salt": SALT})
    got_status, _, got = await gate.post(path, asked)
    assert status == 200, expected
    assert (name, got_status, timeless(got)) == (name, status, timeless(expected))


def restated(refused: bytes, **changes: str) -> dict[str, Any]:
    """A worker's refusal in OpenAI's types, with a code that is text."""
    told: dict[str, Any] = json.loads(refused)["error"]
    return {"error": told | {"type": "invalid_request_error", "code": str(told["code"])} | changes}


def overflow(refused: bytes, param: str) -> dict[str, str]:
    """What is told besides of a prompt that is too long."""
    return {"code": "context_length_exceeded", "param": param} if b"context length" in refused else {}


async def test_refusals_of_responses_are_the_worker_s_own(gate: Front, worker: FakeEngine) -> None:
    bodies: list[dict[str, Any]] = [{}, {"tools": []}, {"input": "x", "temperature": -1}, {"input": "hello " * 40_000}]
    for body in bodies:
        asked = {"model": MODEL} | body
        status, expected = await direct(worker, RESPONSES, asked)
        got_status, _, got = await gate.post(RESPONSES, asked)
        assert (status, got_status, json.loads(got)) == (400, 400, restated(expected, **overflow(expected, "input")))


async def test_refusals_are_the_worker_s_own(gate: Front, worker: FakeEngine) -> None:
    for path, name, body in REFUSED:
        asked = {"model": MODEL} | body
        status, expected = await direct(worker, path, asked)
        got_status, _, got = await gate.post(path, asked)
        assert status == 400, (name, expected)
        param = "prompt" if path == "/v1/completions" else "messages"
        told = restated(expected, **overflow(expected, param))
        assert (name, got_status, json.loads(got)) == (name, status, told)
        assert SALT.encode() not in got


@pytest.mark.requirement("A23", "C14")
async def test_usage_is_always_known_and_recorded(gate: Front) -> None:
    await gate.settled_chat("hello", stream=True)
    assert gate.records[-1].completion_tokens == 4
    assert gate.records[-1].cached_tokens is not None
    assert gate.records[-1].ttft_seconds is not None


@pytest.mark.requirement("C13")
async def test_the_body_is_passed_on_as_it_was_written(gate: Front, worker: FakeEngine) -> None:
    """Numbers, escapes and members we have never heard of are not re-rendered."""
    body = (
        b'{"model":"fake","temperature":0.10000000000000000555,"max_tokens":1e0,"x":{"y" : [1.0,\t2]},'
        b'"messages":[{"role":"user","content":"\\u00e9\\ud83d\\ude00 \xc3\xa9"}]}'
    )
    await gate.post("/v1/chat/completions", body)
    sent = worker.requests[-1].body
    for part in (b'"temperature":0.10000000000000000555', b'"max_tokens":1e0', b'"x":{"y" : [1.0,\t2]}'):
        assert part in sent
    assert b'"\\u00e9\\ud83d\\ude00 \xc3\xa9"' in sent
    assert json.loads(sent)["return_token_ids"] is True
