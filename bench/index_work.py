"""What the index benchmark is run on: chains of block keys, who holds them, prompts, and the answers that are right.

Two sources. *Synthetic*: 32 shared prefixes of 128 blocks, each held by a quarter of the workers, and tails of which
each is one worker's. *Traces*: the hash ids of recorded requests, each sent whole to the worker that its beginning
chooses.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cachefleet_core.block_keys import pack_keys

PREFIXES: Final = 32
PREFIX_BLOCKS: Final = 128
QUERIES: Final = 600
SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
TRACES: Final = Path(os.environ.get("CACHEFLEET_TRACES", Path(__file__).resolve().parents[2] / "shared" / "traces"))


@dataclass(frozen=True, slots=True)
class Chain:
    """Keys that one worker stores after a parent; ``keys`` packed."""

    worker: int
    parent: int
    keys: bytes

    @property
    def blocks(self) -> int:
        return len(self.keys) // 8

    @property
    def reverse(self) -> bytes:
        """The keys last first, as an engine evicts them."""
        return b"".join(self.keys[place : place + 8] for place in range(len(self.keys) - 8, -1, -8))


@dataclass(frozen=True, slots=True)
class Query:
    """A prompt's keys, packed, and the depth of each worker that holds any of it."""

    keys: bytes
    depths: dict[int, int]


@dataclass(slots=True)
class Work:
    """Chains in the order in which they are stored, some of which are evicted, and prompts with their right answers."""

    workers: int
    chains: list[Chain] = field(default_factory=list)
    tails: list[Chain] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        return sum(chain.blocks for chain in self.chains)


def synthetic(*, workers: int, prompt_blocks: int, blocks: int, seed: int = 1) -> Work:
    """About ``blocks`` held blocks, in prompts of ``prompt_blocks``."""
    chance = random.Random(seed)
    work = Work(workers)
    prefixes = [chance.randbytes(8 * PREFIX_BLOCKS) for _ in range(PREFIXES)]
    holders = [chance.sample(range(workers), max(1, workers // 4)) for _ in prefixes]
    for prefix, held_by in zip(prefixes, holders, strict=True):
        work.chains += [Chain(worker, 0, prefix) for worker in held_by]
    held = work.blocks
    numbers: list[int] = []
    while held < blocks or len(work.tails) < len(SHARES):
        number = chance.randrange(PREFIXES)
        tail = Chain(
            chance.choice(holders[number]),
            int.from_bytes(prefixes[number][-8:], "little"),
            chance.randbytes(8 * (prompt_blocks - PREFIX_BLOCKS)),
        )
        work.tails.append(tail)
        numbers.append(number)
        held += tail.blocks
    work.chains += work.tails
    for count in range(QUERIES):
        place = chance.randrange(len(numbers))
        tail, number = work.tails[place], numbers[place]
        matched = int(prompt_blocks * SHARES[count % len(SHARES)])
        whole = prefixes[number] + tail.keys
        depths = dict.fromkeys(holders[number], min(matched, PREFIX_BLOCKS)) if matched else {}
        if matched:
            depths[tail.worker] = matched
        work.queries.append(Query(whole[: 8 * matched] + chance.randbytes(8 * (prompt_blocks - matched)), depths))
    return work


def cut(work: Work, blocks: int) -> Work:
    """The same stored in events of at most so many blocks, nothing evicted."""
    events = Work(work.workers, queries=work.queries)
    for chain in work.chains:
        parent = chain.parent
        for place in range(0, len(chain.keys), 8 * blocks):
            keys = chain.keys[place : place + 8 * blocks]
            events.chains.append(Chain(chain.worker, parent, keys))
            parent = int.from_bytes(keys[-8:], "little")
    return events


def traces(*, workers: int = 64) -> Iterator[tuple[str, Work]]:
    """The recorded workloads that are there, as chains of their hash ids."""
    mooncake = TRACES / "mooncake" / "conversation_trace.jsonl"
    if mooncake.exists():
        lines = mooncake.read_text(encoding="utf-8").splitlines()
        yield "mooncake", _replayed([json.loads(line)["hash_ids"] for line in lines], workers)
    sessions = sorted((TRACES / "agent-sessions").glob("trace_*.json"))
    if sessions:
        prompts: list[list[int]] = []
        for number, path in enumerate(sessions):
            requests = json.loads(path.read_text(encoding="utf-8"))["requests"]
            prompts += [
                [number << 32 | block for block in request["hash_ids"]]
                for request in requests
                if request.get("hash_ids")
            ]
        yield "agent sessions", _replayed(prompts, workers)


def _replayed(prompts: list[list[int]], workers: int) -> Work:
    """Each prompt whole to the worker that its beginning chooses; queries are the prompts again.

    Nothing is evicted: the peer refuses to evict twice what two prompts share.
    """
    work = Work(workers)
    held: list[set[int]] = [set() for _ in range(workers)]
    key: dict[tuple[int, int], int] = {}
    chance = random.Random(1)
    for prompt in prompts:
        keys, parent = [], 0
        for block in prompt:
            parent = key.setdefault((parent, block), chance.getrandbits(64) | 1)
            keys.append(parent)
        if not keys:
            continue
        worker = keys[min(len(keys), 3) - 1] % workers
        chain = Chain(worker, 0, pack_keys(keys))
        work.chains.append(chain)
        held[worker].update(keys)
        work.queries.append(Query(chain.keys, {}))
    for query in work.queries:
        keys = [int.from_bytes(query.keys[place : place + 8], "little") for place in range(0, len(query.keys), 8)]
        for worker, theirs in enumerate(held):
            depth = next((place for place, one in enumerate(keys) if one not in theirs), len(keys))
            if depth:
                query.depths[worker] = depth
    return work
