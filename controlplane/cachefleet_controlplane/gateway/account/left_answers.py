"""Whole answers whose clients did not wait for them: the engine's own count of what was made, where a plugin tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.wire.json_members import READ_ERRORS
from cachefleet_core.engine.left_answers import LEFT_PATH, LeftAnswer, LeftAsk

MOST: Final = 256
"""Requests that are asked about at once; beyond them what is known is accounted."""
ASK_SECONDS: Final = 3.0
_OK: Final = 200

_answer = msgspec.json.Decoder(LeftAnswer)


class LeftAnswers:
    """Asks workers, and settles accounts a moment later."""

    def __init__(self, upstream: Upstream, credentials: Credentials) -> None:
        self._upstream = upstream
        self._credentials = credentials
        self._asking: set[asyncio.Task[None]] = set()

    def later(self, trace: DecisionTrace, settle: Callable[[], None]) -> bool:
        """Call ``settle`` once the worker has told, or does not; False where it is to be called now."""
        if not trace.left_at or trace.cut_short is None or len(self._asking) >= MOST:
            return False
        task = asyncio.get_running_loop().create_task(self._settle(trace, trace.cut_short, settle))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        return True

    async def _settle(self, trace: DecisionTrace, known: Usage, settle: Callable[[], None]) -> None:
        try:
            told = await self._ask(trace.left_at, trace.id)
            if told is not None:
                trace.cut_short = _within(told, known, trace.most_tokens)
        finally:  # also where the gateway ends meanwhile
            settle()

    async def _ask(self, url: str, name: str) -> LeftAnswer | None:
        headers = [
            ("content-type", "application/json"),
            ("authorization", f"Bearer {self._credentials.of(url)}"),
        ]
        body = msgspec.json.encode(LeftAsk(name))
        opened = await self._upstream.ask(url, LEFT_PATH, body, headers=headers, seconds=ASK_SECONDS)
        if opened.stream is not None:
            opened.stream.close()
        if opened.answer is None or opened.answer.status != _OK:
            return None
        try:
            return _answer.decode(opened.answer.body)
        except READ_ERRORS:
            return None


def _within(told: LeftAnswer, known: Usage, most: int) -> Usage:
    """What a worker tells, held to what the request can have cost; a prompt that it has not begun is as known."""
    prompt = min(max(0, told.prompt_tokens), most) or known.prompt_tokens
    cached = None if told.cached_tokens is None else min(max(0, told.cached_tokens), prompt)
    return Usage(prompt, min(max(0, told.completion_tokens), most), cached)
