"""Asks for a turn, streamed or whole, and gives of its answer what must be equal wherever it was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

CHAT: Final = "/v1/chat/completions"
Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its text, why it ended, the prompt's number of tokens or its ids; ``decision`` where one was made."""

    status: int
    texts: tuple[tuple[str, str], ...]
    """What the message's members said, by name, in order."""
    finish: str
    prompt: tuple[int, ...]
    """The ids where they were asked for."""
    error: str = ""
    decision: str = ""

    @property
    def content(self) -> str:
        return dict(self.texts).get("content") or dict(self.texts).get("reasoning") or "I see."

    def same(self, other: Said) -> bool:
        mine, its = ((one.status, one.texts, one.finish, one.prompt) for one in (self, other))
        return mine == its


async def ask(http: aiohttp.ClientSession, url: str, body: Body, headers: dict[str, str]) -> Said:
    """aiohttp.ClientError where the connection ends early."""
    async with http.post(url + CHAT, json=body, headers=headers) as answer:
        text = await answer.text()
    decision = answer.headers.get("x-cachefleet-decision", "")
    if answer.status != 200:
        return Said(answer.status, (), "", (), f"{answer.status}: {text[:300]}", decision)
    events = _events(text) if body["stream"] else [json.loads(text)]
    ended = not body["stream"] or text.endswith("data: [DONE]\n\n")
    errors = [str(event["error"]) for event in events if "error" in event] or ([] if ended else ["cut short"])
    return _said(events, "; ".join(errors), decision)


def _events(text: str) -> list[Body]:
    data = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(one) for one in data if one != "[DONE]"]


def _said(events: list[Body], error: str, decision: str) -> Said:
    texts: dict[str, str] = {}
    prompt: list[int] = []
    finish = ""
    for event in events:
        prompt = event.get("prompt_token_ids") or prompt
        for choice in event.get("choices", ()):
            finish = choice["finish_reason"] or finish
            for name, value in (choice.get("delta") or choice.get("message") or {}).items():
                if value and name != "role":
                    texts[name] = texts.get(name, "") + (value if isinstance(value, str) else json.dumps(value))
    return Said(200, tuple(sorted(texts.items())), finish, tuple(prompt), error, decision)
