"""Requests of a fleet's usual kind for the benchmarks of the worker, and what was answered.

Everything follows from a number: the same numbers give the same requests, to whichever server they go.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from cachefleet_local.models.words import WORDS

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
SYSTEM_WORDS: Final = 160
TURN_WORDS: Final = (60, 160)
OUTPUTS: Final = (32, 64)
SYSTEMS: Final = 4
"""Prefixes that conversations share."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    path: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, streamed or not, without what differs from time to time."""

    text: str
    finish: tuple[str, ...]
    prompt_tokens: int
    completion_tokens: int


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choices(WORDS, k=count))


def requests(model: str, numbers: Sequence[int]) -> list[Asked]:
    """One request for each number: conversations of two turns under a shared system prompt, and plain completions."""
    return [_request(model, number) for number in numbers]


def _request(model: str, number: int) -> Asked:
    chance = random.Random(number // 2)  # two numbers share a conversation
    system = words(random.Random(-1 - number // 2 % SYSTEMS), SYSTEM_WORDS)
    turns = [words(chance, chance.randint(*TURN_WORDS)) for _ in range(3)]
    upto = 3 if number % 2 else 1
    outputs = random.Random(number).randint(*OUTPUTS)
    body = {"model": model, "max_tokens": outputs, "temperature": 0, "ignore_eos": True}
    if number // 2 % 2:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if number // 4 % 2:
        return Asked(COMPLETIONS, body | {"prompt": "\n".join([system, *turns[:upto]])})
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, turns[:upto], strict=False)]
    return Asked(CHAT, body | {"messages": [{"role": "system", "content": system}, *messages]})


async def ask(http: aiohttp.ClientSession, url: str, asked: Asked) -> Answer:
    """RuntimeError where the answer is not a whole one."""
    async with http.post(url + asked.path, json=asked.body) as answer:
        raw = await answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{url}{asked.path} answered {answer.status}: {raw[:500]!r}")
    return read(raw, stream=bool(asked.body.get("stream")))


async def ask_all(http: aiohttp.ClientSession, url: str, batch: Sequence[Asked], *, at_once: int) -> list[Answer]:
    """The answers to a batch, in its order, with ``at_once`` requests under way."""
    waiting = iter(enumerate(batch))
    answers: dict[int, Answer] = {}

    async def client() -> None:
        for place, asked in waiting:
            answers[place] = await ask(http, url, asked)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return [answers[place] for place in range(len(batch))]


def read(raw: bytes, *, stream: bool) -> Answer:
    """What a body says. RuntimeError where a stream was cut short."""
    if stream and not raw.rstrip().endswith(b"data: [DONE]"):
        raise RuntimeError(f"cut short: {raw[-300:]!r}")
    pieces = list(_chunks(raw)) if stream else [json.loads(raw)]
    choices = sorted(
        (choice for piece in pieces for choice in piece["choices"]), key=lambda choice: int(choice["index"])
    )
    usage: dict[str, int] = next((piece["usage"] for piece in reversed(pieces) if piece.get("usage")), {})
    return Answer(
        text="".join(_text(choice) for choice in choices),
        finish=tuple(choice["finish_reason"] for choice in choices if choice.get("finish_reason")),
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
    )


def _chunks(raw: bytes) -> Iterator[dict[str, Any]]:
    for event in raw.split(b"\n\n"):
        data = event.removeprefix(b"data: ").strip()
        if data and data != b"[DONE]":
            yield json.loads(data)


def _text(choice: dict[str, Any]) -> str:
    part = choice.get("delta") or choice.get("message") or {}
    return str(choice.get("text") or part.get("content") or "")
