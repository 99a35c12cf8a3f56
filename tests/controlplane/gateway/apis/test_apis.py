"""Whatever a worker sends, what becomes of it is bytes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.apis.endpoint_apis import api_of
from cachefleet_controlplane.gateway.apis.parse import parse
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send.worker_answer import Answer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.sampled_from(
    [
        *("error", "type", "message", "usage", "response", "choices", "code", "token_ids", "detail"),
        *("input_tokens", "output_tokens", "cache_read_input_tokens", "prompt_tokens"),
    ]
)
NESTED = st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON | st.dictionaries(NAMES, JSON)))
BODIES = st.binary() | NESTED.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
EVENTS = st.sampled_from(
    [
        *(b"", b"event: error\n", b"event: response.completed\n", b"event: response.failed\n"),
        *(b"event: message_start\n", b"event: message_delta\n", b"event: message_stop\n"),
    ]
)
ASKED: dict[Endpoint, Any] = {
    endpoint: parse(b'{"stream":true,"input":"x","prompt":"x","messages":[]}', endpoint) for endpoint in Endpoint
}


@given(st.sampled_from(Endpoint), BODIES, st.sampled_from([200, 400, 404, 413, 429, 500, 503]))
def test_any_answer_is_told(endpoint: Endpoint, body: bytes, status: int) -> None:
    api = api_of(endpoint)
    told = api.whole(ASKED[endpoint], Answer(status, (), body), sent=3)
    assert told.status == status
    if status > 400:
        assert json.loads(told.body)["error"]["message"]
    api.usage(body)


@given(st.sampled_from(Endpoint), st.lists(st.tuples(EVENTS, BODIES)))
def test_any_stream_is_told(endpoint: Endpoint, events: list[tuple[bytes, bytes]]) -> None:
    transformer = api_of(endpoint).transformer(ASKED[endpoint], None)
    for name, data in events:
        assert isinstance(transformer.feed(name + b"data: " + data.replace(b"\n", b" ") + b"\n\n"), bytes)
    assert isinstance(transformer.end(), bytes)


@pytest.mark.parametrize("endpoint", [Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.EMBEDDINGS])
def test_other_events_pass_as_they_are(endpoint: Endpoint) -> None:
    transformer = api_of(endpoint).transformer(ASKED[endpoint], None)
    event = b'event: ping\ndata: {"type": "ping",  "x":1.10}\n\n'
    assert transformer.feed(event) == event
