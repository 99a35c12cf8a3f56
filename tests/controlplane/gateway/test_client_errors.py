"""Errors as clients of typed languages and agents read them: codes that are text, and those by which they act."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.controlplane.gateway.apis.client_setup import clients
from tests.controlplane.gateway.harness import MODEL, Front, Known, engine, events, front
from tests.controlplane.gateway.tenancies import ACME, directory
from tests.fakes.engine import FakeEngine

CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = (CHATS, "/v1/completions", RESPONSES, MESSAGES)
LIMIT = 512
LONG = "word " * 2 * LIMIT


@pytest.fixture
async def worker() -> AsyncIterator[FakeEngine]:
    async with engine(max_model_len=LIMIT) as made:
        yield made


@pytest.fixture
async def gate(worker: FakeEngine) -> AsyncIterator[Front]:
    async with front([worker], max_model_len=LIMIT) as made:
        yield made


def asked(path: str, text: str = "x", **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        CHATS: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
        "/v1/completions": {"prompt": text, "max_tokens": 4},
        RESPONSES: {"input": text, "max_output_tokens": 4},
        MESSAGES: {"messages": [{"role": "user", "content": text}], "max_tokens": 4},
    }[path]
    return {"model": MODEL} | own | changes


async def refusal(gate: Front, path: str, body: Any) -> dict[str, Any]:
    status, _, told = await gate.post(path, body)
    assert status >= 400
    error: dict[str, Any] = json.loads(told)["error"]
    return error | {"status": status}


@pytest.mark.parametrize("path", [CHATS, "/v1/completions", RESPONSES])
async def test_a_model_that_is_not_there_has_openais_code(gate: Front, path: str) -> None:
    error = await refusal(gate, path, asked(path, model="nope"))
    assert (error["status"], error["type"], error["param"]) == (404, "invalid_request_error", "model")
    assert error["code"] == "model_not_found"


async def test_a_path_that_is_not_there_has_a_code_in_words(gate: Front) -> None:
    async with gate.http.get(gate.url + "/v1/none") as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_url")


async def test_a_missing_key_has_a_code_in_words() -> None:
    async with front([], known=Known(directory(ACME))) as gate:
        assert (await refusal(gate, CHATS, asked(CHATS)))["code"] == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHATS, "/v1/completions", RESPONSES])
async def test_the_number_in_a_workers_own_refusal_becomes_text(
    gate: Front, worker: FakeEngine, path: str, *, stream: bool
) -> None:
    error = await refusal(gate, path, asked(path, temperature=-1, stream=stream))
    assert (error["code"], error["type"]) == ("400", "invalid_request_error")
    assert "temperature" in error["message"]
    worker.fail_next(503, count=8)
    assert (await refusal(gate, path, asked(path, stream=stream)))["code"] == "503"


@pytest.mark.parametrize("path", [CHATS, RESPONSES])
async def test_an_error_in_a_stream_that_has_begun_has_a_code_that_is_text(
    gate: Front, worker: FakeEngine, path: str
) -> None:
    worker.cut_next_stream(2)
    _, _, body = await gate.post(path, asked(path, stream=True, seed=1))
    last = next(json.loads(one.rpartition(b"data: ")[2]) for one in reversed(events(body)) if one != b"[DONE]")
    error = last.get("error", last)
    assert (error["code"], error["message"]) == ("502", "The worker's answer broke off.")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "param"), [(CHATS, "messages"), ("/v1/completions", "prompt"), (RESPONSES, "input")])
async def test_a_prompt_that_the_engine_finds_too_long_has_openais_code(
    gate: Front, path: str, param: str, *, stream: bool
) -> None:
    error = await refusal(gate, path, asked(path, LONG, stream=stream))
    assert (error["status"], error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert "maximum context length" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_clients_read_that_the_prompt_is_too_long(gate: Front, *, stream: bool) -> None:
    error = await refusal(gate, MESSAGES, asked(MESSAGES, LONG, stream=stream))
    assert error["type"] == "invalid_request_error"
    assert error["message"] == f"prompt is too long: {LIMIT + 1} tokens > {LIMIT} maximum"


async def test_it_is_the_same_where_the_gateway_finds_it() -> None:
    """More blocks than any worker has are no matter for an engine."""
    async with engine(num_blocks=40) as worker, front([worker]) as gate:
        gate.report(0, **gate.load(0))
        told = await refusal(gate, CHATS, asked(CHATS, "x" * 500, max_tokens=200))
        assert (told["status"], told["code"], told["param"]) == (400, "context_length_exceeded", "messages")
        told = await refusal(gate, MESSAGES, asked(MESSAGES, "x" * 500, max_tokens=200))
        tokens = gate.records[-1].prompt_tokens
        words = f"input length and `max_tokens` exceed context limit: {tokens} + 200 > 624, decrease input length"
        assert (told["status"], told["message"].startswith(words)) == (400, True), told
        assert not any(seen.path in {CHATS, MESSAGES} for seen in worker.requests)


async def test_the_official_clients_see_them(gate: Front) -> None:
    made = clients(gate.url, model=MODEL)
    async with made.openai, made.anthropic:
        with pytest.raises(openai.BadRequestError) as long:
            await made.openai.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": LONG}])
        assert long.value.code == "context_length_exceeded"
        assert long.value.request_id
        with pytest.raises(openai.NotFoundError) as unknown:
            await made.openai.responses.create(model="nope", input="x")
        assert (unknown.value.code, unknown.value.type) == ("model_not_found", "invalid_request_error")
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 513 tokens > 512 maximum") as refused:
            await made.anthropic.messages.create(
                model=MODEL, max_tokens=4, messages=[{"role": "user", "content": LONG}]
            )
        assert refused.value.request_id
        said = await made.anthropic.messages.create(
            model=MODEL, max_tokens=4, messages=[{"role": "user", "content": "x"}]
        )
        assert said._request_id


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_every_answer_names_its_request(gate: Front, path: str, *, stream: bool) -> None:
    for body in (asked(path, stream=stream), asked(path, stream=stream, temperature=-1), b"{", {"model": "nope"}):
        _, headers, _ = await gate.post(path, body)
        assert headers["x-request-id"]
        assert headers.get("request-id") == (headers["x-request-id"] if path == MESSAGES else None)
        assert headers.get("x-cachefleet-decision", headers["x-request-id"]) == headers["x-request-id"]
    _, headers, _ = await gate.post(path, asked(path), x_request_id="mine-7")
    assert headers["x-request-id"] == "mine-7"


async def test_answers_of_no_request_to_a_worker_are_named_too(gate: Front) -> None:
    for path in ("/health", "/v1/models", "/v1/none", "/v1/messages", "/openapi.json"):
        async with gate.http.get(gate.url + path) as answer:
            assert answer.headers["x-request-id"], path
            assert ("request-id" in answer.headers) == (path == MESSAGES)


@pytest.mark.parametrize("path", [*PATHS, "/v1/route"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"model":"fake","messages":[{"content":"half \\ud83d of it"}]}', "`messages[0].content` has \\ud83d"),
        (b'{"model":"fake","prompt":"ok \\ud83d\\ude00 bad \\udc00"}', "`prompt` has \\udc00"),
        (b'{"model":"fake","x":"\xed\xa0\x80"}', "not UTF-8: invalid continuation byte at byte 21 (0xed)"),
        (b'{"model":"fake","input":"abc', "Unterminated string at byte 24 of 28; the body ends within it"),
        (b'{"model":"fake","input":[1,', "at byte 27 of 27; the body ends within it"),
        (b'{"model":"fake","input":[1,}', "at byte 27 of 28."),
    ],
)
async def test_what_is_wrong_with_a_body_and_where(
    gate: Front, worker: FakeEngine, path: str, body: bytes, words: str
) -> None:
    error = await refusal(gate, path, body)
    assert error["status"] == 400
    assert words in error["message"]
    assert not worker.requests


async def test_a_whole_pair_and_a_backslash_before_a_u_are_text(gate: Front) -> None:
    body = b'{"model":"fake","max_tokens":4,"messages":[{"role":"user","content":"\\ud83d\\ude00 \\\\ud83d"}]}'
    assert (await gate.post(CHATS, body))[0] == 200


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; charset=utf-8"]
)
@pytest.mark.parametrize("path", PATHS)
async def test_workers_are_sent_json_whatever_its_client_called_it(
    gate: Front, worker: FakeEngine, path: str, kind: str | None
) -> None:
    headers = {"content-type": kind} if kind else {}
    body = json.dumps(asked(path)).encode()
    posted = gate.http.post(gate.url + path, data=body, headers=headers, skip_auto_headers=("content-type",))
    async with posted as answer:
        assert answer.status == 200
    seen = [one for one in worker.requests if one.path == path]
    assert [{name.lower(): value for name, value in one.headers.items()}["content-type"] for one in seen] == [
        "application/json"
    ]
