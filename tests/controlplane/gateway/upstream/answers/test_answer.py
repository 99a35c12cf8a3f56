"""Taking out of an answer what only we asked for, and nothing else."""

import json
from typing import Any

import pytest

from cachefleet_controlplane.gateway.upstream.answers import answer
from cachefleet_controlplane.gateway.upstream.answers.answer import StreamFilter, read_usage, restate_size, without_ids
from cachefleet_runtime.sse import event_data

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
    return StreamFilter(**(given | changes))


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


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "HELD_BYTES", 200)
    made = transformer(single=False)
    assert made.feed(delta(finish="stop")) == b""
    assert made.feed(delta("x" * 200, index=1)) == delta(finish="stop") + delta("x" * 200, index=1)


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
    assert without_ids(data) == expected
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
    assert without_ids(data) == data
    assert transformer().feed(b"data: " + data + b"\n\n") == b"data: " + data + b"\n\n"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"usage":7}', b'{"usage":null}', b"{}"])
def test_an_answer_without_usage(body: bytes) -> None:
    assert read_usage(body) is None


def test_cached_tokens() -> None:
    usage = read_usage(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":7}}}')
    assert usage is not None
    assert usage.cached_tokens == 7
    bare = read_usage(b'{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}')
    assert bare is not None
    assert bare.cached_tokens is None


def test_a_refusal_tells_the_size_of_the_clients_body() -> None:
    def told(where: str, size: int) -> bytes:
        return b"'loc': '%s', 'msg': 'Field required', 'input': '<dict of %d items>'" % (where.encode(), size)

    assert restate_size(told("body.messages", 5), sent=5, asked=2) == told("body.messages", 2)
    # A part of the body that happens to be as large is the client's own.
    assert restate_size(told("body.messages.0.role", 5), sent=5, asked=2) == told("body.messages.0.role", 5)
