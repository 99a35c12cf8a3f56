"""Recorded conversations as requests to real vLLM with a tiny model: coding-agent sessions and tau-bench chats.

Of a session each sixteenth block of 64 tokens becomes one of 32, so lengths are scaled 1:32; what is shared in the
trace is shared here, block for block. Chats are sent as they are, as far as the model's context reaches.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from bench.replay_work import TRACES

BLOCK: Final = 32
STRIDE: Final = 16
"""Blocks of a session for one of ours."""
FIRST_ID: Final = 300
IDS: Final = 1200
"""Token ids that say ordinary text in the tiny model's tokenizer."""
OUTPUT_TOKENS: Final = 8
LONGEST: Final = 5_800
"""Tokens of a prompt."""
CHARACTERS: Final = 2.0
"""Of a token, at the least, in the chats' language and the tiny model's tokenizer."""

Conversation = list[dict[str, Any]]
"""Bodies of requests, in the order in which each waits for the answer to the one before."""


def agent_sessions(run: str, *, most: int, folder: Path = TRACES) -> list[Conversation]:
    """Of each session the first ``most`` requests that fit. No two of different runs share a block.

    FileNotFoundError where the traces are not there.
    """
    paths = sorted((folder / "agent-sessions").glob("trace_*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}/agent-sessions")
    return [list(_session(f"{run}/{path.stem}", path, most)) for path in paths]


def chats(run: str, *, most: int, folder: Path = TRACES) -> list[Conversation]:
    """The first ``most`` chats; what the customer and the tools say is as recorded, and so is what was answered."""
    recorded = json.loads((folder / "tau-bench" / "airline.json").read_text(encoding="utf-8"))
    return [list(_chat(run, one["traj"])) for one in recorded[:most]]


def block_ids(name: str) -> tuple[int, ...]:
    """The tokens of a block: equal names are equal tokens, and no other two are."""
    digest = hashlib.sha512(name.encode()).digest()
    return tuple(FIRST_ID + each % IDS for each in array("H", digest))


@lru_cache(maxsize=65_536)
def _block(run: str, number: int) -> tuple[int, ...]:
    return block_ids(f"{run}/{number}")


def _session(run: str, path: Path, most: int) -> Iterator[dict[str, Any]]:
    sent = 0
    for number, record in enumerate(json.loads(path.read_text(encoding="utf-8"))["requests"]):
        blocks = record.get("hash_ids", [])[STRIDE - 1 :: STRIDE]
        if not blocks or len(blocks) * BLOCK > LONGEST or sent >= most:
            continue
        sent += 1
        ids = [each for block in blocks for each in _block(run, block)]
        yield {"prompt": ids + list(block_ids(f"{run}/end/{number}")[:5])}


def _chat(run: str, told: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    messages: list[dict[str, str]] = []
    for message in told:
        text = str(message.get("content") or "")
        if message["role"] == "assistant":
            if sum(len(each["content"]) for each in messages) > LONGEST * CHARACTERS:
                return
            yield {"messages": list(messages)}
            text = text or json.dumps(message.get("tool_calls"))
        elif message["role"] == "system":
            text = f"{run}\n{text}"
        role = message["role"] if message["role"] in {"system", "assistant"} else "user"
        messages.append({"role": role, "content": text})
