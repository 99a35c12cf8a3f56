"""Taking out of a stream, or an answer, what only we asked for, and nothing else; native code as the reference."""

from __future__ import annotations

import json
from typing import Any

import cachefleet_native
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.send.answers.stream_filter import StreamFilter
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_runtime.sse import event_data
from tests.reference.stream_filter import ReferenceFilter, encoded
from tests.reference.usage import usage_in

FINGERPRINT = b'"vllm-1-abc"'
DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def delta(text: str = "a", *, index: int = 0, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
    return event(id="c", choices=[choice | more])


def tail(**usage: int) -> bytes:
    return event(id="c", choices=[], usage={"prompt_tokens": 3} | usage, system_fingerprint="vllm-1-abc")


def signed(of: bytes) -> bytes:
    return b"data: " + event_data(of)[:-1] + b',"system_fingerprint":' + FINGERPRINT + b"}\n\n"


def transformer(**changes: Any) -> StreamFilter:
    given: dict[str, Any] = {"strip_usage": True, "strip_ids": True, "single": True}
    return StreamFilter(Endpoint.CHAT, **(given | changes))


def through(made: StreamFilter, *events: bytes) -> bytes:
    return b"".join(map(made.feed, events)) + made.end()


def test_usage_goes_and_its_fingerprint_goes_where_it_was() -> None:
    made = transformer()
    assert through(made, delta(), delta(finish="stop"), tail(), DONE) == delta() + signed(delta(finish="stop")) + DONE
    assert made.usage is not None
    assert made.usage.prompt_tokens == 3
    assert made.fingerprint == FINGERPRINT


def test_usage_that_was_asked_for_stays_and_is_read() -> None:
    made = transformer(strip_usage=False)
    events = [delta(), delta(finish="stop"), tail(), DONE]
    assert through(made, *events) == b"".join(events)
    assert made.usage is not None


def test_the_last_event_of_a_single_choice_waits_for_what_follows_and_only_it() -> None:
    made = transformer(fingerprint=b'"old"')
    assert made.feed(delta()) == delta()
    assert made.feed(delta(finish="stop")) == b""
    assert made.feed(tail()) == signed(delta(finish="stop"))


def test_of_several_choices_a_known_fingerprint_is_put_in_at_once() -> None:
    made = transformer(single=False, fingerprint=FINGERPRINT)
    assert made.feed(delta(finish="stop")) == signed(delta(finish="stop"))
    assert made.feed(delta(index=1)) == delta(index=1)


def test_of_several_choices_everything_waits_where_it_is_not_known() -> None:
    made = transformer(single=False)
    assert made.feed(delta(finish="stop")) + made.feed(delta(index=1)) == b""
    assert made.feed(tail()) == signed(delta(finish="stop")) + delta(index=1)


def test_what_waits_is_bounded() -> None:
    made, long = transformer(single=False), "x" * 4 * 1024 * 1024
    assert made.feed(delta(finish="stop")) == b""
    assert made.feed(delta(long, index=1)) == delta(finish="stop") + delta(long, index=1)


@pytest.mark.parametrize("ending", [(DONE,), ()], ids=["done", "cut"])
def test_a_stream_without_usage_loses_nothing(ending: tuple[bytes, ...]) -> None:
    events = (delta(), delta(finish="stop"), *ending)
    assert through(transformer(), *events) == b"".join(events)


def test_a_worker_without_fingerprint_gets_none() -> None:
    bare = event(id="c", choices=[], usage={"prompt_tokens": 3})
    assert through(transformer(), delta(finish="stop"), bare) == delta(finish="stop")


def test_usage_that_a_worker_gives_everybody_stays() -> None:
    events = [event(choices=[{"index": 0}], usage={"prompt_tokens": 1}), delta(finish="stop"), tail(), DONE]
    assert through(transformer(), *events) == b"".join(events)


def test_ids_become_null_and_every_other_byte_stays() -> None:
    data = (
        b'{"id":"c","choices":[{"index":0,"delta":{"content":"\\"token_ids\\":[1] \xe6\xbc\xa2"},"logprobs":null,'
        b'"finish_reason":null,"p":1.0000000000000001e-3,"token_ids":[1,2]}],"prompt_token_ids":[3,4],"x":[ 1 ]}'
    )
    expected = data.replace(b'"token_ids":[1,2]', b'"token_ids":null').replace(b"[3,4]", b"null")
    assert cachefleet_native.without_token_ids(data) == expected
    assert transformer().feed(b"data: " + data + b"\n\n") == b"data: " + expected + b"\n\n"


def test_ids_that_were_asked_for_stay() -> None:
    assert transformer(strip_ids=False).feed(delta(token_ids=[1])) == delta(token_ids=[1])


def test_an_event_that_is_there_for_its_ids_alone_goes() -> None:
    hollow = event(choices=[{"index": 0, "delta": {}, "logprobs": None, "finish_reason": None, "token_ids": [1]}])
    assert transformer().feed(hollow) == b""
    ends = event(choices=[{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop", "token_ids": [1]}])
    assert through(transformer(), ends) == ends.replace(b"[1]", b"null")


@pytest.mark.parametrize("data", [b'{"token_ids":[1', b'["token_ids":[]', b'{"choices":7,"token_ids":[1]}', b"\xff"])
def test_what_is_not_vllms_is_left_alone(data: bytes) -> None:
    assert cachefleet_native.without_token_ids(data) == data
    assert transformer().feed(b"data: " + data + b"\n\n") == b"data: " + data + b"\n\n"


def test_what_is_no_usage_is_none() -> None:
    made = transformer()
    assert through(made, delta(), event(choices=[], usage="x"), DONE) == delta() + DONE
    assert made.usage is None


def test_an_error_gets_the_form_of_the_api() -> None:
    error = b'data: {"error":{"message":"x","code":500}}\n\n'
    told = msgspec.json.decode(event_data(transformer().feed(error)))["error"]
    assert (told["type"], told["code"]) == ("server_error", "500")


def test_of_an_answer_that_has_not_ended_as_much_is_known_as_its_events_tell() -> None:
    made = transformer(single=False)
    for index in (0, 1):
        made.feed(event(choices=[{"index": index, "text": ""}], prompt_token_ids=[1, 2, 3]))
        made.feed(event(choices=[{"index": index, "text": "a", "token_ids": [1, 2]}]))
    assert made.so_far(prompts=1, choices=2, known_prompt=9) == Usage(3, 4)
    assert made.so_far(prompts=2, choices=1, known_prompt=9) == Usage(6, 4)
    assert transformer().so_far(prompts=1, choices=1, known_prompt=9) == Usage(9, 0)


texts = st.text(max_size=4) | st.sampled_from(
    [
        '"token_ids":[1]',
        '\\"token_ids":[',
        '"finish_reason":"stop"',
        '"choices":[]',
        '],"prompt_token_ids":[',
        '"usage":{',
    ]
)
ids = st.none() | st.lists(st.integers(0, 2**32 - 1), max_size=3)
said = st.one_of(
    *(st.fixed_dictionaries({"delta": st.fixed_dictionaries({name: texts})}) for name in ("content", "reasoning")),
    st.fixed_dictionaries({"delta": st.just({}) | st.just({"role": "assistant", "content": ""})}),
    st.fixed_dictionaries({"text": texts}),
)
rest: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"index": st.integers(0, 2), "logprobs": st.none() | st.just({"content": []})},
    optional={
        "finish_reason": st.none() | st.sampled_from(["stop", "length", "abort"]),
        "token_ids": ids,
        "prompt_token_ids": ids,
    },
)
choices = st.lists(st.builds(lambda one, other: one | other, said, rest), min_size=1, max_size=3)
usages = st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 9)},
    optional={"prompt_tokens_details": st.none() | st.builds(lambda n: {"cached_tokens": n}, st.integers(0, 2))},
)
deltas = st.fixed_dictionaries(
    {"id": texts, "choices": choices},
    optional={
        "prompt_token_ids": ids,
        "usage": st.none() | usages,
        "kv_transfer_params": st.just({"token_ids": [1]}),
    },
)
ends = st.fixed_dictionaries(
    {"id": texts, "choices": st.just([]), "usage": usages},
    optional={"system_fingerprint": st.none() | texts.filter(bool)},
)
others = st.sampled_from([DONE, b": ping\n\n", b"\n\n", b"data: nonsense\n\n"])
events = st.lists((deltas | deltas | ends).map(encoded) | others, max_size=10)


@given(
    events=events,
    strip_usage=st.booleans(),
    strip_ids=st.booleans(),
    single=st.booleans(),
    fingerprint=st.none() | st.just("") | texts,
    echoes=st.integers(0, 2),
    omit=st.booleans(),
)
def test_the_filter_is_the_reference(
    events: list[bytes], *, fingerprint: str | None, omit: bool, **options: Any
) -> None:
    reference = ReferenceFilter(**options, fingerprint=fingerprint, omit_zeros=omit)
    known = (
        None if fingerprint is None else json.dumps(fingerprint, ensure_ascii=False).encode() if fingerprint else b""
    )
    native = cachefleet_native.StreamFilter(Endpoint.CHAT, **options, fingerprint=known)
    native.omit_zeros(omit)
    for each in events:
        assert native.feed(each) == reference.feed(each)
    assert native.end() == reference.end()
    expected = usage_in(json.dumps({"usage": reference.usage}).encode())
    assert native.usage == (None if expected is None else astuple(expected))
    assert native.counted == (reference.produced, reference.prompts, reference.longest)
