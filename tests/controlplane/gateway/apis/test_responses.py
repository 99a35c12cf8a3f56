"""``/v1/responses``: routed by what is cached, salted, never stored, and told in its own shape."""

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.parse import parse, upstream_body
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send import worker_answer
from cachefleet_controlplane.wire.errors import ApiError
from tests.controlplane.gateway.harness import MODEL, SALT, engine, front
from tests.controlplane.waiting import value

PATH = "/v1/responses"
LONG = "the same long beginning of every prompt " * 12


def body(text: str = "hello", **changes: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "max_output_tokens": 4} | changes


def told(data: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each of which has its type as its name."""
    events = [event.split(b"\n") for event in data.split(b"\n\n") if event]
    payloads = [json.loads(lines[1].removeprefix(b"data: ")) for lines in events]
    assert [lines[0].removeprefix(b"event: ").decode() for lines in events] == [one["type"] for one in payloads]
    return payloads


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
            assert record.endpoint == PATH
            assert record.cached_tokens is not None
            assert record.cached_tokens >= record.predicted_tokens > 0
            assert record.completion_tokens == 4
        assert gate.records[-1].ttft_seconds is not None


async def test_the_worker_gets_the_salt_and_is_told_to_store_nothing() -> None:
    async with engine() as worker, front([worker]) as gate:
        private: dict[str, Any] = {
            "cache_salt": "mine",
            "kv_transfer_params": {"x": 1},
            "vllm_xargs": {"cachefleet_x": 1, "y": 2},
        }
        status, _, _ = await gate.post(PATH, body(store=True, previous_response_id=None, **private))
        assert status == 200
        for seen in worker.requests:
            sent = json.loads(seen.body)
            assert (sent["cache_salt"], sent["store"], sent["vllm_xargs"]) == (SALT, False, {"y": 2})
            assert "kv_transfer_params" not in sent
        assert [seen.path for seen in worker.requests] == [f"{PATH}/render", PATH]


async def test_other_members_are_passed_on_as_they_were_written() -> None:
    data = b'{"model":"m","input":[{"role":"user","content":"\\u00e9"}],"temperature":0.10000000000000000555}'
    sent, _ = upstream_body(parse(data, Endpoint.RESPONSES), model="m", salt="")
    assert sent == data[:-1] + b',"store":false}'


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"background": "yes"}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
async def test_what_needs_stored_history_is_a_400(changes: dict[str, Any], param: str) -> None:
    async with engine() as worker, front([worker]) as gate:
        status, _, data = await gate.post(PATH, body(**changes))
        assert (status, json.loads(data)["error"]["param"]) == (400, param)
        assert not worker.requests


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/r1"), ("DELETE", "/r1"), ("POST", "/r1/cancel"), ("GET", "/r1/input_items")]
)
async def test_stored_responses_are_a_400(method: str, path: str) -> None:
    async with front([]) as gate, gate.http.request(method, f"{gate.url}{PATH}{path}") as answer:
        assert answer.status == 400
        assert "not stored" in (await answer.json())["error"]["message"]


async def test_a_worker_that_dies_before_its_first_token_leaves_no_trace() -> None:
    """The engine says at once that a response is created; that alone must not bind the client to this worker."""
    async with engine() as one, engine() as two, front([one, two]) as gate:
        for worker in (one, two):
            worker.cut_next_stream(0)
        status, _, data = await gate.settled(PATH, body(LONG, stream=True))
        events = told(data)
    assert status == 200
    assert [attempt.outcome for attempt in gate.records[0].attempts] == ["lost", "lost", "finished"]
    assert events[-1]["type"] == "response.completed"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_answer, "MAX_HELD_EVENTS", 1)
    async with engine() as worker, front([worker]) as gate:
        worker.cut_next_stream(0)
        _, _, data = await gate.settled(PATH, body(stream=True))
        assert [event["type"] for event in told(data)][::2] == ["response.created", "error"]
        assert [attempt.outcome for attempt in gate.records[0].attempts] == ["lost"]


async def test_a_stream_that_breaks_ends_with_an_error_event_of_its_number() -> None:
    async with engine() as worker, front([worker]) as gate:
        worker.cut_next_stream(3)
        _, _, data = await gate.post(PATH, body(stream=True))
        events = told(data)
    assert events[-1]["type"] == "error"
    assert events[-1]["code"] == "502"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


async def test_a_worker_without_the_route_loses_no_other_rung() -> None:
    async with engine(scale_out=False) as worker, front([worker]) as gate:
        gate.report(0)
        _, headers, _ = await gate.post(PATH, body())
        assert headers["x-cachefleet-knowledge"] == "load"
        assert value(gate.metrics, "render_failures_total", reason="absent") == 1
        _, headers, _ = await gate.chat("hello")
        assert headers["x-cachefleet-knowledge"] == "exact"
        assert [seen.path for seen in worker.requests].count("/v1/chat/completions/render") == 1


def test_usage_of_an_answer_and_of_a_stream() -> None:
    api = api_of(Endpoint.RESPONSES)
    usage = b'{"input_tokens":9,"input_tokens_details":{"cached_tokens":7},"output_tokens":2,"total_tokens":11}'
    whole = api.usage(b'{"id":"r","usage":' + usage + b"}")
    transformer = api.transformer(parse(b'{"input":"x","stream":true}', Endpoint.RESPONSES), None)
    event = b'event: response.completed\ndata: {"response":{"usage":' + usage + b'},"type":"response.completed"}\n\n'
    assert transformer.feed(event) == event
    for got in (whole, transformer.usage):
        assert got is not None
        assert (got.prompt_tokens, got.cached_tokens, got.completion_tokens) == (9, 7, 2)
    for bad in (b"", b"[]", b'{"usage":7}', b'{"usage":null}'):
        assert api.usage(bad) is None


def test_state_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(ApiError, match="not stored"):
        parse(b'{"input":"x","background":1}', Endpoint.RESPONSES)
