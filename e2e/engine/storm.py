"""A preemption storm: more long answers at once than an engine's blocks can hold."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

from e2e.engine.requests import COMPLETION
from e2e.engine.side import Side

REQUESTS: Final = 6
PROMPT_TOKENS: Final = 200
OUTPUT_TOKENS: Final = 700
"""With 64 blocks of 32 tokens two of them fit at their end."""
MARK: Final[dict[str, Any]] = {"vllm_xargs": {"cachefleet_resumable": 1}}


@dataclass(slots=True)
class Storm:
    """What came of one storm."""

    seconds: float = 0.0
    answers: list[dict[str, Any]] = field(default_factory=list)
    """The first choice of each, with ``details`` and ``usage``; of a stream its parts joined; ``taken`` in seconds."""

    @property
    def survivors(self) -> list[dict[str, Any]]:
        return [answer for answer in self.answers if answer["finish_reason"] == "length"]

    @property
    def handed_back(self) -> list[dict[str, Any]]:
        return [answer for answer in self.answers if answer["finish_reason"] == "cache_threshold"]

    @property
    def survivors_throughput(self) -> float:
        """Tokens a second of those that were answered whole."""
        return float(sum(answer["usage"]["completion_tokens"] for answer in self.survivors) / self.seconds)

    @property
    def throughput(self) -> float:
        """Tokens a second that reached their clients, of those handed back too."""
        return float(sum(answer["usage"]["completion_tokens"] for answer in self.answers) / self.seconds)

    def speed(self, number: int) -> float:
        """Tokens a second of one answer, from its request on."""
        answer = self.answers[number]
        return float(answer["usage"]["completion_tokens"] / answer["taken"])


def prompts(seed: int, count: int = REQUESTS, length: int = PROMPT_TOKENS) -> list[list[int]]:
    """Prompts that share nothing with each other, nor with those of another seed."""
    chance = random.Random(seed)
    return [[chance.randrange(300, 1200) for _ in range(length)] for _ in range(count)]


async def storm(side: Side, given: list[list[int]], *, stream: bool = False, **more: Any) -> Storm:
    """Ask for long answers to all prompts at once."""
    body = {"model": "tiny", "max_tokens": OUTPUT_TOKENS, "temperature": 0, "ignore_eos": True, **more}
    body |= {"return_token_ids": True}
    body |= {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    began = time.perf_counter()

    async def answer(prompt: list[int]) -> dict[str, Any]:
        exchange = await side.send(COMPLETION, body | {"prompt": prompt})
        return {**_joined(exchange.status, exchange.body), "taken": time.perf_counter() - began}

    answers = await asyncio.gather(*map(answer, given))
    return Storm(time.perf_counter() - began, list(answers))


def _joined(status: int, body: Any) -> dict[str, Any]:
    assert status == 200, body
    if isinstance(body, dict):
        details = (body.get("kv_transfer_params") or {}).get("cache_threshold")
        return {**body["choices"][0], "usage": body["usage"], "details": details}
    parts = [choice for chunk in body for choice in chunk["choices"]]
    assert not any("error" in chunk for chunk in body), body
    (reason,) = [part["finish_reason"] for part in parts if part["finish_reason"]]
    return {
        "text": "".join(part["text"] for part in parts),
        "token_ids": [token for part in parts for token in part["token_ids"]],
        "finish_reason": reason,
        "usage": body[-1]["usage"],
        "details": None,
        "last": parts[-1],
    }
