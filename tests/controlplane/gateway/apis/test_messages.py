"""``/v1/messages``: routed by what is cached, salted, and told in Anthropic's shape, errors too."""

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.gateway.send.worker_answer import Answer
from tests.controlplane.gateway.harness import MODEL, SALT, engine, front
from tests.controlplane.waiting import value

PATH = "/v1/messages"
LONG = "the same long beginning of every prompt " * 12
ASK = parse(b'{"model":"m","messages":[],"max_tokens":1}', Endpoint.MESSAGES)
API = api_of(Endpoint.MESSAGES)


def body(text: str = "hello", **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | changes


def error(data: bytes) -> tuple[str, str]:
    told = json.loads(data)
    assert told.keys() == {"type", "error"}
    assert told["type"] == "error"
    return told["error"]["type"], told["error"]["message"]


async def test_a_known_prefix_decides_and_the_prediction_meets_what_was_served() -> None:
    async with engine() as one, engine() as two, front([one, two]) as gate:
        for number in (0, 1):
            gate.report(number)
        _, first, _ = await gate.settled(PATH, body(LONG))
        for stream in (False, True):
            for number in (0, 1):
                gate.report(number)
            _, headers, _ = await gate.settled(PATH, body(LONG, stream=stream))
            assert headers["x-cachefleet-worker"] == first["x-cachefleet-worker"]
            assert headers["x-cachefleet-knowledge"] == "exact"
            record = gate.records[-1]
            assert record.cached_tokens is not None
            assert record.cached_tokens >= record.predicted_tokens > 0
            assert record.completion_tokens == 4
        assert gate.records[-1].ttft_seconds is not None
        prompts = value(gate.metrics, "prompt_tokens_total", model=MODEL)
        assert prompts == sum(record.prompt_tokens for record in gate.records)


async def test_the_worker_gets_the_salt_and_neither_the_client_s_key_nor_what_is_private() -> None:
    async with engine() as worker, front([worker]) as gate:
        asked = body(cache_salt="mine", ec_transfer_params={"x": 1})
        await gate.post(PATH, asked, x_api_key="sk-client", anthropic_version="2023-06-01")
        for seen in worker.requests:
            sent = json.loads(seen.body)
            assert sent["cache_salt"] == SALT
            assert "ec_transfer_params" not in sent
            assert "sk-client" not in str(seen.headers)
        assert [seen.path for seen in worker.requests] == [f"{PATH}/render", PATH]


async def test_tokens_are_counted_by_any_worker_and_nothing_is_rendered_or_salted() -> None:
    async with engine() as worker, front([worker]) as gate:
        gate.report(0)
        asked = body(cache_salt="mine")
        status, headers, data = await gate.post(f"{PATH}/count_tokens", asked)
        assert (status, headers["x-cachefleet-knowledge"]) == (200, "load")
        assert json.loads(data)["input_tokens"] > 0
        assert [seen.path for seen in worker.requests] == [f"{PATH}/count_tokens"]
        assert "cache_salt" not in json.loads(worker.requests[0].body)
        assert value(gate.metrics, "render_bypasses_total", reason="count_tokens") == 1


async def test_errors_of_the_gateway_have_anthropic_s_shape() -> None:
    bounds = GatewayBounds(body_bytes=1000, body_seconds=5, requests=10)
    async with front([], bounds=bounds) as gate:
        asked = [
            ("POST", PATH, b"{", 400, "invalid_request_error"),
            ("POST", PATH, json.dumps(body(model="other")).encode(), 404, "not_found_error"),
            ("POST", PATH, json.dumps(body()).encode(), 503, "overloaded_error"),
            ("POST", PATH, b"x" * 2000, 413, "request_too_large"),
            ("GET", PATH, b"", 405, "invalid_request_error"),
            ("GET", f"{PATH}/batches", b"", 404, "not_found_error"),
        ]
        for method, path, data, status, kind in asked:
            async with gate.http.request(method, gate.url + path, data=data) as answer:
                assert (answer.status, error(await answer.read())[0]) == (status, kind)


async def test_errors_of_the_worker_have_anthropic_s_shape_whatever_theirs_was() -> None:
    lacking = body()
    del lacking["max_tokens"]
    async with engine() as worker, front([worker], max_attempts=1) as gate:
        for asked, words in ((lacking, "Field required"), (body(max_tokens=-1), "max_tokens")):
            status, headers, data = await gate.post(PATH, asked)
            assert (status, headers["content-type"]) == (400, "application/json")
            kind, message = error(data)
            assert kind == "invalid_request_error"
            assert words in message
            assert f"<dict of {len(asked) + 1} items>" not in message
        worker.fail_next(count=2)  # its renderer fails as well
        status, _, data = await gate.post(PATH, body())
        assert (status, error(data)) == (500, ("api_error", "Injected failure"))


async def test_a_stream_that_breaks_ends_with_an_error_event() -> None:
    async with engine() as worker, front([worker]) as gate:
        worker.cut_next_stream(2)
        _, _, data = await gate.post(PATH, body(stream=True))
    last = data.rstrip(b"\n").rpartition(b"\n\n")[2]
    name, _, payload = last.partition(b"\n")
    assert name == b"event: error"
    assert error(payload.removeprefix(b"data: "))[0] == "api_error"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((400, "invalid_request_error"), (401, "authentication_error"), (403, "permission_error")),
        *((404, "not_found_error"), (413, "request_too_large"), (422, "invalid_request_error")),
        *((429, "rate_limit_error"), (500, "api_error"), (503, "overloaded_error"), (529, "overloaded_error")),
    ],
)
@pytest.mark.parametrize(
    "given",
    [
        b'{"error":{"message":"words","type":"T","param":null,"code":1}}',
        b'{"type":"error","error":{"type":"T","message":"words"}}',
        b'{"error":"words"}',
        b'{"detail":"words"}',
    ],
)
def test_types_follow_the_status(status: int, kind: str, given: bytes) -> None:
    told = API.whole(ASK, Answer(status, ((b"content-type", b"text/plain"), (b"x", b"y")), given), sent=3)
    assert error(told.body) == (kind, "words")
    assert told.headers == ((b"x", b"y"), (b"content-type", b"application/json"))


@pytest.mark.parametrize("given", [b"Internal Server Error", b"", b"[]", b'{"error":{}}'])
def test_an_error_without_words_has_some(given: bytes) -> None:
    assert error(API.whole(ASK, Answer(500, (), given), sent=3).body)[1]


def test_an_error_in_a_stream_gets_a_type_that_anthropic_has() -> None:
    event = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"words"}}\n\n'
    fed = API.transformer(ASK, None).feed(event)
    assert fed == b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"words"}}\n\n'
    assert API.whole(ASK, Answer(200, (), event), sent=3).body == fed


STARTED = {"input_tokens": 900, "cache_read_input_tokens": 8000, "output_tokens": 1}


@pytest.mark.parametrize(
    ("started", "ended", "usage"),
    [
        (STARTED, {"output_tokens": 57}, Usage(8900, 57, 8000)),
        (STARTED, {"output_tokens": 57, "input_tokens": 0}, Usage(8900, 57, 8000)),
        (STARTED, {"output_tokens": 57, "input_tokens": 901}, Usage(8901, 57, 8000)),
        (STARTED, {"output_tokens": 57, "input_tokens": None, "cache_read_input_tokens": None}, Usage(8900, 57, 8000)),
        (
            {"input_tokens": 64},
            {"output_tokens": 5, "input_tokens": 16, "cache_read_input_tokens": 48},
            Usage(64, 5, 48),
        ),
        (
            {"input_tokens": 64},
            {"output_tokens": 5, "input_tokens": 0, "cache_creation_input_tokens": 64},
            Usage(64, 5),
        ),
        ({}, {"output_tokens": 5, "input_tokens": 64}, Usage(64, 5)),
        (STARTED, {}, None),
    ],
    ids=str,
)
def test_the_last_counts_are_merged_with_the_first(
    started: dict[str, Any], ended: dict[str, Any], usage: Usage | None
) -> None:
    """Anthropic's own ``message_delta`` has the output alone, vLLM's has all."""
    transformer = API.transformer(ASK, None)
    for name, told in (("message_start", {"message": {"usage": started}}), ("message_delta", {"usage": ended})):
        transformer.feed(f"event: {name}\ndata: {json.dumps(told)}\n\n".encode())
    assert transformer.usage == usage


def test_usage_counts_what_was_cached_as_part_of_the_prompt() -> None:
    usage = b'{"input_tokens":1,"cache_creation_input_tokens":2,"cache_read_input_tokens":7,"output_tokens":4}'
    transformer = API.transformer(ASK, None)
    start = b'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":10}}}\n\n'
    assert transformer.feed(start) == start
    assert transformer.usage is None
    assert transformer.so_far(prompts=1, choices=1, known_prompt=7) == Usage(10, 0)
    transformer.feed(b'event: message_delta\ndata: {"type":"message_delta","usage":' + usage + b"}\n\n")
    for got in (transformer.usage, API.usage(b'{"usage":' + usage + b"}")):
        assert got is not None
        assert (got.prompt_tokens, got.cached_tokens, got.completion_tokens) == (10, 7, 4)
