"""Answers that go on at another worker: what the client gets is what one worker alone would have given."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cachefleet_controlplane.workers.pool import Pool
from tests.controlplane.gateway.harness import Front, chat, engine, events, front
from tests.fakes.engine import FakeEngine

LONG: dict[str, Any] = {"max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
COMPLETION: dict[str, Any] = {"model": chat("")["model"], "prompt": "tell me more", **LONG}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture
async def gate() -> AsyncIterator[Front]:
    async with engine(plugin=True) as one, engine(plugin=True) as two, front([one, two]) as gate:
        yield gate


def engines(gate: Front) -> list[FakeEngine]:
    found = [each for each in gate.engines if isinstance(each, FakeEngine)]
    assert len(found) == 2
    return found


def text_of(choice: dict[str, Any]) -> str:
    said = choice.get("delta") or choice.get("message") or {}
    return choice.get("text") or said.get("content") or ""


def joined(body: bytes) -> dict[str, Any]:
    """What a stream says in all."""
    *chunks, done = events(body)
    assert done == b"[DONE]"
    parts = [json.loads(chunk) for chunk in chunks]
    choices = [choice for part in parts for choice in part["choices"]]
    return {
        "text": "".join(map(text_of, choices)),
        "ids": [token for choice in choices for token in choice.get("token_ids") or []],
        "ends": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "names": {(part["id"], part["object"]) for part in parts},
        "usage": {name: parts[-1]["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")},
    }


def told(body: bytes) -> dict[str, Any]:
    """What a whole answer says."""
    answer = json.loads(body)
    (choice,) = answer["choices"]
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    return {"text": text_of(choice), "ids": choice["token_ids"], "end": choice["finish_reason"], "usage": usage}


REQUESTS = [("/v1/chat/completions", chat("hello there", **LONG)), ("/v1/completions", COMPLETION)]


@pytest.mark.parametrize(("path", "body"), REQUESTS, ids=["chat", "completion"])
class TestHandBack:
    async def test_a_stream_goes_on_as_if_nothing_had_been(self, gate: Front, path: str, body: dict[str, Any]) -> None:
        _, _, whole = await gate.settled(path, body | USAGE)
        for one in engines(gate):
            one.hand_back(5)
        status, _, spliced = await gate.settled(path, body | USAGE)
        assert status == 200
        assert joined(spliced) | {"names": 0} == joined(whole) | {"names": 0}
        assert len(joined(spliced)["names"]) == 1
        assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["handed_back", "handed_back", "finished"]

    async def test_so_does_a_whole_answer(self, gate: Front, path: str, body: dict[str, Any]) -> None:
        _, _, whole = await gate.settled(path, body)
        for one in engines(gate):
            one.hand_back(5)
        status, _, spliced = await gate.settled(path, body)
        assert (status, told(spliced)) == (200, told(whole))
        assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["handed_back", "handed_back", "answered"]
        workers = [attempt.worker for attempt in gate.records[-1].attempts]
        assert workers[0] != workers[1]

    async def test_the_bound_on_tokens_holds_however_it_is_written(
        self, gate: Front, path: str, body: dict[str, Any]
    ) -> None:
        for one in engines(gate):
            one.hand_back(5)
        status, _, spliced = await gate.post(path, body | {"max_tokens": 12.0})
        assert (status, told(spliced)["usage"]["completion_tokens"]) == (200, 12)

    async def test_what_the_client_did_not_ask_for_it_does_not_see(
        self, gate: Front, path: str, body: dict[str, Any]
    ) -> None:
        plain = {name: value for name, value in body.items() if name != "return_token_ids"} | {"stream": True}
        engines(gate)[0].hand_back(5)
        engines(gate)[1].hand_back(5)
        _, _, spliced = await gate.post(path, plain)
        for data in events(spliced)[:-1]:
            chunk = json.loads(data)
            assert "usage" not in chunk
            assert not any(choice.get("token_ids") for choice in chunk["choices"])

    async def test_after_the_last_one_it_runs_where_it_is(self, gate: Front, path: str, body: dict[str, Any]) -> None:
        """Two hand-backs are the default; the third attempt is not marked."""
        for one in engines(gate):
            one.hand_back(2, 2, 2, 2)
        _, _, spliced = await gate.settled(path, body | USAGE)
        assert joined(spliced)["usage"]["completion_tokens"] == 12
        assert len(gate.records[-1].attempts) == 3
        marks = [
            b"cachefleet_resumable" in seen.body for one in engines(gate) for seen in one.requests if _served(seen)
        ]
        assert sorted(marks) == [False, True, True]

    async def test_a_stream_whose_worker_dies_goes_on_too(self, gate: Front, path: str, body: dict[str, Any]) -> None:
        _, _, whole = await gate.settled(path, body | USAGE)
        number = int(gate.records[-1].worker.removeprefix("demo-"))
        engines(gate)[1 - number].cut_next_stream(4)  # the least recently used one is next
        _, _, spliced = await gate.settled(path, body | USAGE)
        assert joined(spliced) | {"names": 0} == joined(whole) | {"names": 0}
        assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["cut_off", "finished"]

    @pytest.mark.parametrize("least", [3, 7, 12])
    async def test_the_least_of_tokens_holds_over_the_seam(
        self, gate: Front, path: str, body: dict[str, Any], least: int
    ) -> None:
        """Of each token that may end it, the first is masked as long as it would be on one worker."""
        _, _, plain = await gate.settled(path, body | USAGE)
        ends = body | USAGE | {"stop_token_ids": joined(plain)["ids"][least - 2 :], "min_tokens": least}
        _, _, whole = await gate.settled(path, ends)
        number = int(gate.records[-1].worker.removeprefix("demo-"))
        engines(gate)[1 - number].cut_next_stream(5)
        _, _, spliced = await gate.settled(path, ends)
        assert joined(spliced) | {"names": 0} == joined(whole) | {"names": 0}
        assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["cut_off", "finished"]
        rest = next(json.loads(seen.body) for seen in reversed(engines(gate)[number].requests) if _served(seen))
        produced = len(rest["prompt"]) - joined(whole)["usage"]["prompt_tokens"]
        assert rest.get("min_tokens", 0) == max(0, least - produced)

    async def test_where_all_die_the_stream_ends_with_an_error(
        self, gate: Front, path: str, body: dict[str, Any]
    ) -> None:
        for one in engines(gate):
            one.cut_next_stream(4)
        _, _, broken = await gate.post(path, body | USAGE)
        *_, error, done = events(broken)
        assert (json.loads(error)["error"]["code"], done) == ("502", b"[DONE]")

    async def test_what_others_cannot_go_on_with_is_neither_marked_nor_resumed(
        self, gate: Front, path: str, body: dict[str, Any]
    ) -> None:
        for one in engines(gate):
            one.hand_back(2)
            one.cut_next_stream(4)
        _, _, broken = await gate.settled(path, body | USAGE | {"seed": 7})
        assert b'"error"' in broken
        assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["lost"]


@pytest.mark.parametrize("stop", [["never comes"], "never comes"])
async def test_a_stop_string_keeps_a_dead_workers_text_back(gate: Front, stop: Any) -> None:
    """Of its last tokens no text has come, so nobody can go on behind them."""
    for one in engines(gate):
        one.cut_next_stream(6)
    _, _, broken = await gate.post("/v1/completions", COMPLETION | USAGE | {"stop": stop})
    assert b'"error"' in broken


async def test_stop_strings_that_count_only_after_the_least_of_tokens_are_not_resumed(gate: Front) -> None:
    for one in engines(gate):
        one.cut_next_stream(6)
    asked = COMPLETION | USAGE | {"stop": ["x"], "include_stop_str_in_output": True, "min_tokens": 8}
    await gate.settled("/v1/completions", asked)
    assert [attempt.outcome for attempt in gate.records[-1].attempts] == ["lost"]


async def test_a_stop_string_over_the_seam_is_found(gate: Front) -> None:
    _, _, whole = await gate.post("/v1/completions", COMPLETION)
    text, ids = told(whole)["text"], told(whole)["ids"]
    stop = text[len(text) // 2 - 2 : len(text) // 2 + 2]
    expected = await gate.post("/v1/completions", COMPLETION | USAGE | {"stop": [stop]})
    for after in range(1, len(ids) - 1):
        for one in engines(gate):
            one.worker.scheduler.hand_backs.clear()
            one.hand_back(after)
        _, _, spliced = await gate.post("/v1/completions", COMPLETION | USAGE | {"stop": [stop]})
        assert joined(spliced)["text"] == joined(expected[2])["text"]
        assert joined(spliced)["ends"] == ["stop"]


def _served(seen: Any) -> bool:
    return seen.path in {"/v1/chat/completions", "/v1/completions"}


async def test_a_continued_request_is_one_request_with_one_prompt(gate: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[tuple[int, int]] = []
    monkeypatch.setattr(Pool, "counted_before", lambda _, tokens, cached, __: again.append((tokens, cached)))
    await gate.settled("/v1/completions", COMPLETION)
    for one in engines(gate):
        one.hand_back(5)
    await gate.settled("/v1/completions", COMPLETION | USAGE)
    alone, continued = gate.records
    assert [attempt.outcome for attempt in continued.attempts] == ["handed_back", "handed_back", "finished"]
    assert continued.prompt_tokens == alone.prompt_tokens
    assert continued.worker == continued.attempts[0].worker
    assert continued.completion_tokens == alone.completion_tokens == 12
    (pool,) = gate.fleet.view().pools
    assert pool.hit_ratio.answered_tokens == 2 * alone.prompt_tokens
    assert again == [(alone.prompt_tokens + 5, 0), (alone.prompt_tokens + 10, 0)]
