"""What a soak asks, of every API, and whether an answer is the whole one: every token of these fakes is a character."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.soak_fleet import MODEL

Json = dict[str, Any]

WORDS: Final = ("cache", "fleet", "worker", "prefix", "block", "token", "request", "answer", "engine", "router")
TALKS: Final = 24
TALK_WORDS: Final = 120
QUESTIONS: Final = 16
"""To each of them: so few that what remembers prompts within a bound has soon seen all."""
TOKENS: Final = (8, 16, 32)
_TOOL: Final = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of request. ``resumable``: another worker can go on with its stream."""

    name: str
    path: str
    make: Callable[[str, int], Json]
    said: Callable[[Sequence[Json]], str]
    """All text of an answer: of its events, or of itself alone."""
    end: str = ""
    """What the last event of a whole stream holds; "" for what is no stream."""
    resumable: bool = False
    choices: int = 1

    def fault(self, body: str, tokens: int) -> str:
        """What is wrong with an answer of 200; "" where it is whole."""
        try:
            told = list(events(body)) if self.end else [json.loads(body)]
        except ValueError:
            return "not JSON"
        if any("error" in one and one["error"] for one in told):
            return "error event"
        if self.end and self.end not in body[-4000:]:
            return "no end"
        length, due = len(self.said(told)), tokens * self.choices
        return "" if due in {length, 0} else f"{length} characters, not {due}"


def events(body: str) -> Iterable[Json]:
    """The JSON of a stream's events."""
    for line in body.splitlines():
        data = line.removeprefix("data:").strip()
        if line.startswith("data:") and data != "[DONE]":
            yield json.loads(data)


def prompt(chance: random.Random) -> str:
    """The turn of a conversation: a common beginning, then a question."""
    talk = random.Random(chance.randrange(TALKS))
    known = " ".join(talk.choices(WORDS, k=TALK_WORDS))
    return f"{known} question {chance.randrange(QUESTIONS)}"


def _chat(**more: Any) -> Callable[[str, int], Json]:
    return lambda text, tokens: _base(tokens) | {"messages": [{"role": "user", "content": text}]} | more


def _completion(**more: Any) -> Callable[[str, int], Json]:
    return lambda text, tokens: _base(tokens) | {"prompt": text} | more


def _response(**more: Any) -> Callable[[str, int], Json]:
    return lambda text, tokens: {"model": MODEL, "input": text, "max_output_tokens": tokens} | more


def _base(tokens: int) -> Json:
    return {"model": MODEL, "max_tokens": tokens}


def _choices(told: Sequence[Json]) -> str:
    parts = []
    for choice in (choice for one in told for choice in one.get("choices", ())):
        spoken = choice.get("delta") or choice.get("message") or {}
        parts.append(choice.get("text") or spoken.get("content") or "")
    return "".join(parts)


def _output(told: Sequence[Json]) -> str:
    if "output" not in told[0]:
        return "".join(one["delta"] for one in told if one.get("type") == "response.output_text.delta")
    return "".join(part["text"] for item in told[0]["output"] for part in item.get("content") or ())


def _message(told: Sequence[Json]) -> str:
    if "content" in told[0]:
        return "".join(part.get("text", "") for part in told[0]["content"])
    return "".join(one["delta"].get("text", "") for one in told if one.get("type") == "content_block_delta")


_DONE: Final = "data: [DONE]"
_CHATS, _TEXTS = "/v1/chat/completions", "/v1/completions"
_ANSWERS, _MESSAGES = "/v1/responses", "/v1/messages"

KINDS: Final = (
    Kind("chat", _CHATS, _chat(), _choices),
    Kind("chat, stream", _CHATS, _chat(stream=True), _choices, _DONE, resumable=True),
    Kind("chat of two, stream", _CHATS, _chat(stream=True, n=2, temperature=1.0), _choices, _DONE, choices=2),
    Kind("chat with tools, stream", _CHATS, _chat(stream=True, tools=[_TOOL]), _choices, _DONE),
    Kind("completion", _TEXTS, _completion(), _choices),
    Kind("completion, stream", _TEXTS, _completion(stream=True), _choices, _DONE, resumable=True),
    Kind("response", _ANSWERS, _response(), _output),
    Kind("response, stream", _ANSWERS, _response(stream=True), _output, "response.completed"),
    Kind("message", _MESSAGES, _chat(), _message),
    Kind("message, stream", _MESSAGES, _chat(stream=True), _message, "message_stop"),
    Kind("count tokens", f"{_MESSAGES}/count_tokens", _chat(), lambda _: "", choices=0),
    Kind("route", "/v1/route", _chat(), lambda _: "", choices=0),
)
