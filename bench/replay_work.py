"""Recorded workloads as requests of token ids, scaled to a small engine; and seeded made-up ones for tests.

Scaling by 1:N divides every length in tokens by N and leaves the times alone, so that N is the ratio of the trace's
block size to ours, BLOCK: one block of the trace becomes one of ours. A block's tokens are a digest of its number:
equal numbers are equal tokens, and no other two blocks are equal.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

BLOCK: Final = 16
TRACES: Final = Path(os.environ.get("CACHEFLEET_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
MOONCAKE_BLOCK: Final = 512
SESSION_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One of a workload: full blocks by number, ``tail`` tokens after them (below BLOCK), tokens to answer, seconds."""

    number: int
    at: float
    blocks: tuple[int, ...]
    tail: int
    outputs: int

    @property
    def length(self) -> int:
        """In tokens."""
        return BLOCK * len(self.blocks) + self.tail

    @property
    def usable(self) -> int:
        """Blocks that a cache can serve: of a prompt's last token an engine computes the answer's first."""
        return (self.length - 1) // BLOCK

    def tokens(self) -> list[int]:
        out: list[int] = []
        for block in self.blocks:
            out += block_tokens(block)
        return out + list(block_tokens(-1 - self.number)[: self.tail])


@lru_cache(maxsize=65_536)
def block_tokens(number: int) -> tuple[int, ...]:
    """The token ids of a block, from 0 to 65535."""
    return tuple(array("H", hashlib.sha256(b"%d" % number).digest()))


def mooncake(folder: Path = TRACES) -> list[Request]:
    """The Mooncake conversation trace; FileNotFoundError where it is not there."""
    lines = (folder / "mooncake" / "conversation_trace.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [
        scaled(number, record["timestamp"] / 1e3, record, block=MOONCAKE_BLOCK, names=("input_length", "output_length"))
        for number, record in enumerate(records)
    ]


def sessions(folder: Path = TRACES, *, within: float, until: float, seed: int = 1) -> list[Request]:
    """The coding-agent sessions up to ``until``, each begun at a random moment of the first ``within`` seconds.

    FileNotFoundError where they are not there.
    Blocks are shared within a session only, as the trace tells them.
    """
    paths = sorted((folder / "agent-sessions").glob("trace_*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}/agent-sessions")
    chance = random.Random(seed)
    found: list[tuple[float, dict[str, Any]]] = []
    for place, path in enumerate(paths):
        begun = chance.uniform(0.0, within)
        for record in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            if record.get("hash_ids") and begun + record["t"] <= until:
                own = {**record, "hash_ids": [place << 32 | block for block in record["hash_ids"]]}
                found.append((begun + record["t"], own))
    found.sort(key=lambda one: one[0])
    return [
        scaled(number, at, record, block=SESSION_BLOCK, names=("in", "out"))
        for number, (at, record) in enumerate(found)
    ]


def scaled(number: int, at: float, record: dict[str, Any], *, block: int, names: tuple[str, str]) -> Request:
    """A request of a trace with blocks of ``block`` tokens; ``names`` are those of its two lengths."""
    scale = block // BLOCK
    prompt, outputs = (record[name] for name in names)
    full = min(prompt // block, len(record["hash_ids"]))
    tail = min(BLOCK - 1, -(-(prompt - full * block) // scale))
    if not full:
        tail = max(1, tail)
    return Request(number, at, tuple(record["hash_ids"][:full]), tail, max(1, -(-outputs // scale)))


def synthetic(*, conversations: int, turns: int, seed: int = 1, gap: float = 0.05) -> list[Request]:
    """Conversations under one system prompt that take turns at random, in bursts of up to four at a time."""
    chance = random.Random(seed)
    system = tuple(range(4))
    told: list[tuple[int, ...]] = [system] * conversations
    order = [talk for talk in range(conversations) for _ in range(turns)]
    chance.shuffle(order)
    requests, at, fresh = [], 0.0, len(system)
    for number, talk in enumerate(order):
        grown = chance.randrange(2, 9)
        told[talk] += tuple(range(fresh, fresh + grown))
        fresh += grown
        at += gap * chance.randrange(4) if number % 4 == 0 else 0.0
        requests.append(Request(number, at, told[talk], chance.randrange(1, BLOCK), chance.randrange(1, 24)))
    return requests


def stampede(
    *,
    prefix: int = 512,
    rate: float = 200.0,
    seconds: float = 10.0,
    cold: float = 40.0,
    before: float = 80.0,
    seed: int = 1,
) -> list[Request]:
    """All of a sudden everybody asks for one prefix of so many blocks, beside cold prompts of 40 that fill the caches.

    ``rate`` and ``cold`` are requests a second. The prefix is the blocks from 0 on.
    """
    chance, found, fresh = random.Random(seed), [], prefix
    moments: list[tuple[float, int, tuple[int, ...]]] = []
    moments += [(place / cold, 40, ()) for place in range(int(cold * (before + seconds)))]
    at = before
    while (at := at + chance.expovariate(rate)) < before + seconds:
        moments.append((at, 2, tuple(range(prefix))))
    for number, (moment, own, shared) in enumerate(sorted(moments)):
        found.append(Request(number, moment, shared + tuple(range(fresh, fresh + own)), 7, 4))
        fresh += own
    return found


def blocks(requests: Iterable[Request]) -> int:
    """Full blocks of all prompts."""
    return sum(len(request.blocks) for request in requests)


def chains(requests: Sequence[Request]) -> list[list[int]]:
    """For each request a number for each of its blocks that commits to all blocks before it."""
    known: dict[tuple[int, int], int] = {}
    out = []
    for request in requests:
        chain, parent = [], 0
        for block in request.blocks:
            parent = known.setdefault((parent, block), len(known) + 1)
            chain.append(parent)
        out.append(chain)
    return out
