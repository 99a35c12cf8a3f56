"""Recorded workloads as requests to simulate, scaled to a small engine; and seeded made-up ones for tests.

Scaling by 1:N divides every length in tokens by N and leaves the times alone, so that N is the ratio of the trace's
block size to ours, BLOCK: one block of the trace becomes one of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from cachefleet_controlplane.simulation.workload import SimulatedRequest, TraceLine, from_trace

BLOCK: Final = 16
TRACES: Final = Path(os.environ.get("CACHEFLEET_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))
MOONCAKE_BLOCK: Final = 512
SESSION_BLOCK: Final = 64
CHARACTERS: Final = 4
"""Of a chat's text that count as a token."""


def mooncake(folder: Path = TRACES) -> list[SimulatedRequest]:
    """The Mooncake conversation trace; FileNotFoundError where it is not there."""
    lines = (folder / "mooncake" / "conversation_trace.jsonl").read_text(encoding="utf-8").splitlines()
    names = ("input_length", "output_length")
    records = [json.loads(line) for line in lines]
    return requests(scaled(record["timestamp"] / 1e3, record, block=MOONCAKE_BLOCK, names=names) for record in records)


def sessions(folder: Path = TRACES, *, within: float, until: float, seed: int = 1) -> list[SimulatedRequest]:
    """The coding-agent sessions up to ``until``, each begun at a random moment of the first ``within`` seconds.

    FileNotFoundError where they are not there.
    Blocks are shared within a session only, as the trace tells them.
    """
    paths = sorted((folder / "agent-sessions").glob("trace_*.json"))
    if not paths:
        raise FileNotFoundError(f"{folder}/agent-sessions")
    chance = random.Random(seed)
    lines = []
    for place, path in enumerate(paths):
        begun = chance.uniform(0.0, within)
        for record in json.loads(path.read_text(encoding="utf-8"))["requests"]:
            if record.get("hash_ids") and begun + record["t"] <= until:
                own = {**record, "hash_ids": [place << 32 | block for block in record["hash_ids"]]}
                lines.append(scaled(begun + record["t"], own, block=SESSION_BLOCK, names=("in", "out")))
    return requests(lines)


def chats(folder: Path = TRACES, *, within: float, pause: tuple[float, float], seed: int = 1) -> list[SimulatedRequest]:
    """The tau-bench chats, each begun at a random moment of the first ``within`` seconds, with random pauses between.

    FileNotFoundError where they are not there. Text counts as a token for each CHARACTERS; what a chat's answers say
    is in its later prompts, and cached as it was said.
    """
    chance = random.Random(seed)
    found: list[tuple[float, str, str]] = []
    for one in json.loads((folder / "tau-bench" / "airline.json").read_text(encoding="utf-8")):
        at, told = chance.uniform(0.0, within), ""
        for message in one["traj"]:
            said = f"{message.get('content') or json.dumps(message.get('tool_calls'))}\n"
            if message["role"] == "assistant":
                found.append((at, told, said))
                at += chance.uniform(*pause)
            told += said
    ordered = sorted(found, key=lambda turn: turn[0])
    return [_turn(number, turn, ordered[0][0]) for number, turn in enumerate(ordered)]


def _turn(number: int, turn: tuple[float, str, str], began: float) -> SimulatedRequest:
    """A turn of a chat: when, all that was told before it, and its answer."""
    at, told, said = turn
    tokens, outputs = len(told) // CHARACTERS, max(1, len(said) // CHARACTERS)
    keys = _text_keys(told + said, (tokens + outputs) // BLOCK)
    prompt = tokens // BLOCK
    return SimulatedRequest(number, at - began, keys[:prompt], max(1, tokens), outputs, keys[prompt:])


def _text_keys(text: str, most: int) -> tuple[int, ...]:
    size, keys, parent = BLOCK * CHARACTERS, [], b""
    for place in range(min(most, len(text) // size)):
        parent = hashlib.blake2b(parent + text[place * size : place * size + size].encode(), digest_size=8).digest()
        keys.append(int.from_bytes(parent, "little") or 1)
    return tuple(keys)


def scaled(at: float, record: dict[str, Any], *, block: int, names: tuple[str, str]) -> TraceLine:
    """A request of a trace with blocks of ``block`` tokens; ``names`` are those of its two lengths."""
    scale = block // BLOCK
    prompt, outputs = (record[name] for name in names)
    full = min(prompt // block, len(record["hash_ids"]))
    tail = min(BLOCK - 1, -(-(prompt - full * block) // scale))
    if not full:
        tail = max(1, tail)
    return line(at, record["hash_ids"][:full], tail, max(1, -(-outputs // scale)))


def line(at: float, blocks: Sequence[int], tail: int, outputs: int) -> TraceLine:
    """A request at ``at`` seconds: full blocks by number, ``tail`` tokens after them (below BLOCK), ``outputs``."""
    length = BLOCK * len(blocks) + tail
    return TraceLine(timestamp=1e3 * at, input_length=length, output_length=outputs, hash_ids=tuple(blocks))


def requests(lines: Iterable[TraceLine]) -> list[SimulatedRequest]:
    """By arrival, in seconds after the first one's."""
    return from_trace(tuple(lines), block_size=BLOCK, trace_block=BLOCK)


def synthetic(*, conversations: int, turns: int, seed: int = 1, gap: float = 0.05) -> list[SimulatedRequest]:
    """Conversations under one system prompt that take turns at random, in bursts of up to four at a time."""
    chance = random.Random(seed)
    system = tuple(range(4))
    told: list[tuple[int, ...]] = [system] * conversations
    order = [talk for talk in range(conversations) for _ in range(turns)]
    chance.shuffle(order)
    lines, at, fresh = [], 0.0, len(system)
    for number, talk in enumerate(order):
        grown = chance.randrange(2, 9)
        told[talk] += tuple(range(fresh, fresh + grown))
        fresh += grown
        at += gap * chance.randrange(4) if number % 4 == 0 else 0.0
        lines.append(line(at, told[talk], chance.randrange(1, BLOCK), chance.randrange(1, 24)))
    return requests(lines)


def stampede(
    *,
    prefix: int = 512,
    rate: float = 200.0,
    seconds: float = 10.0,
    cold: float = 40.0,
    before: float = 80.0,
    seed: int = 1,
) -> list[SimulatedRequest]:
    """All of a sudden everybody asks for one prefix of so many blocks, beside cold prompts of 40 that fill the caches.

    ``rate`` and ``cold`` are requests a second. The prefix is the blocks from 0 on.
    """
    chance, lines, fresh = random.Random(seed), [], prefix
    moments: list[tuple[float, int, tuple[int, ...]]] = []
    moments += [(place / cold, 40, ()) for place in range(int(cold * (before + seconds)))]
    at = before
    while (at := at + chance.expovariate(rate)) < before + seconds:
        moments.append((at, 2, tuple(range(prefix))))
    for moment, own, shared in sorted(moments):
        lines.append(line(moment, shared + tuple(range(fresh, fresh + own)), 7, 4))
        fresh += own
    return requests(lines)


def sharing(workload: Sequence[SimulatedRequest]) -> list[int]:
    """Numbers of the requests whose first block is that of others, too."""
    firsts = Counter(request.keys[0] for request in workload)
    return [request.number for request in workload if firsts[request.keys[0]] > 1]


def blocks(workload: Iterable[SimulatedRequest]) -> int:
    """Full blocks of all prompts."""
    return sum(len(request.keys) for request in workload)


def usable(request: SimulatedRequest) -> int:
    """Blocks that a cache can serve: of a prompt's last token an engine computes the answer's first."""
    return (request.tokens - 1) // BLOCK
