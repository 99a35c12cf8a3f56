"""A reference in a completion's answer: whole or streamed, however it is cut, and null where there is none."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_core.continuation import KeptPrefix, PromptCacheRef
from cachefleet_worker.plugin.conversations import answer_reference
from cachefleet_worker.plugin.conversations.answer_reference import ReferenceAnswer
from tests.worker.plugin.conversations.test_turn_store import FINGERPRINTS, HASH

START: Final[dict[str, Any]] = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", b"7")],
}
STREAM = {**START, "headers": [(b"content-type", b"text/event-stream; charset=utf-8")]}


def refer(ids: array[int]) -> PromptCacheRef | None:
    return KeptPrefix(handle="vllm_prefix_a", prefix_hash=HASH, prefix_token_count=sum(ids)).ref(FINGERPRINTS)


async def passed(start: Any, *parts: bytes, refused: bool = False) -> tuple[Any, list[bytes], int]:
    """The start, the bodies, and how many messages had come when the start went out."""
    sent: list[Any] = []
    begun: list[int] = []

    async def send(message: Any) -> None:
        sent.append(message)

    answer = ReferenceAnswer(send, (lambda _ids: None) if refused else refer)
    await answer(start)
    for at, part in enumerate(parts):
        begun += [at] if sent and not begun else []
        await answer({"type": "http.response.body", "body": part, "more_body": at < len(parts) - 1})
    assert [each.get("more_body", False) for each in sent[1:-1]] == [True] * (len(sent) - 2)
    assert sent[-1].get("more_body", False) is False
    return sent[0], [each["body"] for each in sent[1:]], (begun or [len(parts)])[0]


def whole(reason: str | None = "stop", ids: Any = (4, 5), **more: Any) -> bytes:
    choice = {"index": 0, "text": "字", "finish_reason": reason, "token_ids": ids}
    return json.dumps({"id": "cmpl-1", "choices": [choice], **more}, ensure_ascii=False).encode()


def events(*data: bytes) -> bytes:
    return b"".join(b"data: " + each + b"\n\n" for each in data)


async def test_a_whole_answer_gets_a_member() -> None:
    body = whole(usage={"x": 1.0})
    start, bodies, _ = await passed(START, body)
    answer = json.loads(b"".join(bodies))
    assert answer.pop("prompt_cache_ref")["prefix_token_count"] == 9
    assert answer == json.loads(body)
    assert dict(start["headers"])[b"content-length"] == str(len(bodies[0])).encode()
    assert start["headers"][0] == START["headers"][0]
    assert (await passed(START, body[:9], body[9:], b""))[1] == [bodies[0]]


@pytest.mark.parametrize(
    "body",
    [
        whole("abort"),
        whole("cache_threshold"),
        whole("error"),
        whole(None),
        whole("stop", None),
        whole("stop", [-1]),
        whole("stop", ["a"]),
        json.dumps({"choices": json.loads(whole())["choices"] * 2}).encode(),
        json.dumps({"choices": []}).encode(),
        json.dumps({"error": {}}).encode(),
    ],
)
async def test_one_that_did_not_end_by_itself_or_has_no_ids_gets_null(body: bytes) -> None:
    _, (answer,), _ = await passed(START, body)
    assert json.loads(answer) == {**json.loads(body), "prompt_cache_ref": None}
    stream = events(body, b"[DONE]")
    _, bodies, _ = await passed(STREAM, stream)
    assert b'"prompt_cache_ref":null' in b"".join(bodies)


async def test_what_cannot_be_kept_gets_null() -> None:
    _, (answer,), _ = await passed(START, whole(), refused=True)
    assert json.loads(answer)["prompt_cache_ref"] is None


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b""])
async def test_what_is_no_object_is_passed_as_it_is(body: bytes) -> None:
    start, bodies, _ = await passed(START, body)
    assert (b"".join(bodies), dict(start["headers"])[b"content-length"]) == (body, str(len(body)).encode())


@pytest.mark.parametrize(
    "start",
    [{**START, "status": 500}, {**START, "headers": [(b"content-type", b"text/plain")]}, {**START, "headers": []}],
)
async def test_any_other_answer_is_passed_as_it_is(start: Any) -> None:
    assert await passed(start, b"{", b"}") == (start, [b"{", b"}"], 0)


PARTS = [
    whole(None, [4]),
    whole(None, []),
    whole("length", [5, 6]),
    b'{"id":"cmpl-1","choices":[],"usage":{}}',
    b"[DONE]",
]


@given(cuts=st.lists(st.integers(0, len(events(*PARTS))), max_size=9))
async def test_a_stream_gets_an_event_before_its_last(cuts: list[int]) -> None:
    stream = events(*PARTS)
    bounds = [0, *sorted(cuts), len(stream)]
    start, bodies, begun = await passed(STREAM, *[stream[a:b] for a, b in pairwise(bounds)], b"")
    assert (start, begun) == (STREAM, 0)
    before, added, last = b"".join(bodies).rpartition(b"data: [DONE]")[0], None, None
    before, _, added = before[:-2].rpartition(b"\n\n")
    assert before + b"\n\n" + events(b"[DONE]") == stream
    last = json.loads(added.removeprefix(b"data: "))
    assert last.pop("prompt_cache_ref")["prefix_token_count"] == 15
    assert last == {"id": "cmpl-1", "object": "text_completion", "choices": []}


async def test_a_stream_is_passed_event_by_event() -> None:
    first, second = events(PARTS[0]), events(PARTS[2])
    _, bodies, _ = await passed(STREAM, first, second[:9], second[9:] + b"data: [DO", b"NE]\n\n")
    assert bodies[:2] == [first, second]


async def test_a_stream_that_breaks_off_gets_none() -> None:
    stream = events(PARTS[0]) + b"data: {"
    _, bodies, _ = await passed(STREAM, stream, b"")
    assert b"".join(bodies) == stream


@pytest.mark.parametrize("start", [START, STREAM])
async def test_what_is_too_long_to_hold_is_passed_as_it_is(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_reference, "MAX_HELD_BYTES", 10)
    parts = [b"data: {" + b" " * 5, b"x", b"}\n\ndata: [DONE]\n\n"]
    sent, bodies, _ = await passed(start, *parts)
    assert (sent, b"".join(bodies)) == (start, b"".join(parts))
