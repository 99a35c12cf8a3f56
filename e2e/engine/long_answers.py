"""Long answers through a gateway, as streams and whole, with what was said told apart from how it came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

CHAT: Final = "/v1/chat/completions"
COMPLETION: Final = "/v1/completions"
SECONDS: Final = 600.0


@dataclass(slots=True)
class Said:
    """One answer; ``error`` is empty where it came to its end."""

    decision: str = ""
    worker: str = ""
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""


async def ask(
    gateway: str,
    path: str,
    body: dict[str, Any],
    *,
    heard: Callable[[Said], None] = lambda _: None,
    headers: dict[str, str] | None = None,
) -> Said:
    """Ask once, greedily; ``heard`` is told after each piece of a stream."""
    asked = {"temperature": 0, "ignore_eos": True} | body
    if asked.get("stream"):
        asked["stream_options"] = {"include_usage": True}
    said = Said()
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.post(gateway + path, json=asked) as answer,
    ):
        said.decision = answer.headers.get("x-cachefleet-decision", "")
        said.worker = answer.headers.get("x-cachefleet-worker", "")
        if answer.status != 200:
            said.error = f"{answer.status}: {(await answer.read())[:300]!r}"
        elif asked.get("stream"):
            await _follow(answer, said, heard)
        else:
            _take(json.loads(await answer.read()), said)
    return said


async def ask_all(gateway: str, path: str, bodies: list[dict[str, Any]]) -> list[Said]:
    """Ask for all of them at once."""
    return list(await asyncio.gather(*(ask(gateway, path, body) for body in bodies)))


async def _follow(answer: aiohttp.ClientResponse, said: Said, heard: Callable[[Said], None]) -> None:
    done = False
    async for line in answer.content:
        data = line.removeprefix(b"data: ").strip()
        done = done or data == b"[DONE]"
        if data and data != b"[DONE]":
            _take(json.loads(data), said)
            heard(said)
    if not done and not said.error:
        said.error = "cut short"


def _take(part: dict[str, Any], said: Said) -> None:
    if "error" in part:
        said.error = str(part["error"])
        return
    said.usage = part.get("usage") or said.usage
    for choice in part["choices"]:
        message = choice.get("delta") or choice.get("message") or choice
        said.text += message.get("content") or message.get("text") or ""
        said.finish = choice.get("finish_reason") or said.finish
