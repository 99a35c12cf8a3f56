"""One answer out of several workers' streams: whatever the cut, a client sees what one worker alone would have sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.retry.stream_join import Stopping, StreamJoiner
from tests.controlplane.gateway.retry.test_stop_strings import first_stop

PROMPT = [5, 6, 7]
DONE = b"data: [DONE]\n\n"


def event(**chunk: Any) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


class Worker:
    """Says a text one character a token, as vLLM streams it: it keeps back what may begin a stop string."""

    def __init__(self, name: str, *, chat: bool, stops: Sequence[str] = ()) -> None:
        self.head = {"id": name, "object": "chat.completion.chunk" if chat else "text_completion", "created": 1}
        self.head["model"] = "tiny"
        self._chat = chat
        self._back = max((len(stop) for stop in stops), default=1) - 1

    def stream(self, text: str, *, finish: str, stop: str | None) -> Iterator[bytes]:
        if self._chat:
            choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            yield event(**self.head, choices=[choice], prompt_token_ids=PROMPT)
        sent = 0
        for end in range(1, len(text) + 1):
            last = end == len(text)
            upto = end if last else max(sent, end - self._back)
            yield self._piece(text[sent:upto], [ord(text[end - 1])], finish if last else None, stop, first=end == 1)
            sent = upto
        if not text:
            yield self._piece("", [], finish, stop, first=True)
        usage = {"prompt_tokens": 99, "completion_tokens": len(text), "total_tokens": 99 + len(text)}
        yield event(**self.head, choices=[], usage=usage | {"prompt_tokens_details": {"cached_tokens": 2}})
        yield DONE

    def _piece(self, text: str, ids: list[int], finish: str | None, stop: str | None, *, first: bool) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish, "token_ids": ids}
        choice |= {"stop_reason": stop} if finish else {}
        if self._chat:
            return event(**self.head, choices=[choice | {"delta": {"content": text}}])
        return event(**self.head, choices=[choice | {"text": text, "prompt_token_ids": PROMPT if first else None}])


class Client:
    """What comes to a client."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.done = 0

    def take_all(self, joiner: StreamJoiner, events: Iterator[bytes]) -> None:
        for sent in events:
            self.take(b"".join(joiner.feed(sent)))

    def take(self, data: bytes) -> None:
        for part in filter(None, data.split(b"\n\n")):
            if part == b"data: [DONE]":
                self.done += 1
            else:
                self.chunks.append(json.loads(part.removeprefix(b"data: ")))

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    @property
    def text(self) -> str:
        return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in self.choices)

    @property
    def ids(self) -> list[int]:
        return [token for choice in self.choices for token in choice.get("token_ids") or []]

    @property
    def ends(self) -> list[tuple[str, str | None]]:
        return [
            (choice["finish_reason"], choice.get("stop_reason"))
            for choice in self.choices
            if choice["finish_reason"] is not None
        ]


@pytest.mark.parametrize("chat", [True, False])
def test_an_error_behind_the_seam_is_told(chat: bool) -> None:  # noqa: FBT001
    joiner = StreamJoiner(Stopping(["zz"]))
    for sent in Worker("a", chat=chat).stream("hello", finish="cache_threshold", stop="cache_threshold"):
        joiner.feed(sent)
    joiner.resume(5)
    error = event(error={"message": "dead", "type": "InternalServerError", "param": None, "code": 500})
    assert joiner.feed(error) == [error]
    assert joiner.feed(DONE) == [DONE]


@pytest.mark.parametrize("nonsense", [b"data: nonsense\n\n", b"data: []\n\n"])
def test_an_event_that_is_no_chunk_fails_no_request(nonsense: bytes) -> None:
    joiner = StreamJoiner(Stopping())
    for sent in Worker("a", chat=True).stream("hello", finish="cache_threshold", stop="cache_threshold"):
        joiner.feed(sent)
    assert joiner.feed(nonsense) == []
    joiner.resume(5)
    assert joiner.feed(nonsense) == [nonsense]


def test_why_a_worker_gave_up_is_not_told() -> None:
    joiner = StreamJoiner(Stopping())
    choice = {"index": 0, "text": "a", "token_ids": [97], "prompt_token_ids": PROMPT}
    head = {"id": "a", "object": "text_completion", "created": 1, "model": "tiny"}
    given_up = {"finish_reason": "cache_threshold", "stop_reason": "cache_threshold"}
    details = {"cache_threshold": {"hit_tokens": 1, "preempted": 1}}
    first = head | {"choices": [choice | given_up], "usage": {}, "kv_transfer_params": details}
    joiner.whole(json.dumps(first).encode())
    joiner.resume(1)
    last = head | {"choices": [choice | {"finish_reason": "stop", "stop_reason": None}], "kv_transfer_params": None}
    assert json.loads(joiner.whole(json.dumps(last).encode()))["kv_transfer_params"] is None


@given(st.text("ab", min_size=1, max_size=14), st.lists(st.text("ab", min_size=1, max_size=4), max_size=2), st.data())
@pytest.mark.parametrize("kind", ["chat", "completion"])
def test_a_client_sees_one_answer(kind: str, text: str, stops: list[str], data: st.DataObject) -> None:
    whole, stop = first_stop(text, stops)
    joiner, client, start = StreamJoiner(Stopping(stops)), Client(), 0
    for number, cut in enumerate(sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=2)))):
        if first_stop(text[start:cut], stops)[1] is not None:
            break  # a worker stops there by itself
        worker = Worker(f"w{number}", chat=kind == "chat" and not number, stops=stops)
        client.take_all(joiner, worker.stream(text[start:cut], finish="cache_threshold", stop="cache_threshold"))
        if joiner.stopped:
            break
        assert joiner.handed_back
        assert joiner.produced == [ord(character) for character in text[:cut]]
        joiner.resume(cut)
        start = cut
    rest, own_stop = first_stop(text[start:], stops)
    last = Worker("last", chat=kind == "chat" and not joiner.prompt_ids, stops=stops)
    client.take_all(joiner, last.stream(rest, finish="length" if own_stop is None else "stop", stop=own_stop))
    assert (client.text, client.done) == (whole, 1)
    assert client.ends == [("stop", stop) if stop is not None else ("length", None)]
    assert len({(chunk["id"], chunk["object"]) for chunk in client.chunks}) == 1
    usage = client.chunks[-1]["usage"]
    if joiner.prompt_ids:
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), len(client.ids))
        assert usage["total_tokens"] == len(PROMPT) + len(client.ids)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
