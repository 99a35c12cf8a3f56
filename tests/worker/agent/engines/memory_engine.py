"""An engine without sockets: its prompts and its block events are calls. It shows that another engine is possible."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import msgspec

from cachefleet_core.block_keys import BlockKey, BlockKeyer
from cachefleet_core.report_frames import Capability, Policy
from cachefleet_core.warmth import Prefix
from cachefleet_worker.agent.blocks.block_events import AllBlocksCleared, BlockStored, Event
from cachefleet_worker.agent.blocks.resident_blocks import Residents
from cachefleet_worker.agent.engines.engine_errors import EngineError, EngineRefusalError, EngineUnreachableError
from cachefleet_worker.agent.engines.engine_facts import EngineFacts, RankFacts
from cachefleet_worker.agent.engines.engine_poll import EnginePoll, LoadMetrics
from cachefleet_worker.agent.engines.prompt_run import PromptRun

BLOCK_SIZE: Final = 4
BLOCKS: Final = 256
MAX_MODEL_LEN: Final = 512
MODEL: Final = "memory-model"
Chain = tuple[str, tuple[int, ...]]
"""A block: the salt, and all tokens up to its end."""


@dataclass
class Life:
    """One process: the blocks it holds by number, and who follows them."""

    name: str
    hashes: dict[Chain, int] = field(default_factory=dict)
    followers: list[asyncio.Queue[Event | None]] = field(default_factory=list)
    generation: int = 0

    def publish(self, event: Event | None) -> None:
        """To every follower; None where the process ends."""
        for follower in self.followers:
            follower.put_nowait(event)

    def stored(self, chain: Chain) -> BlockStored:
        salt, tokens = chain
        before = self.hashes.get((salt, tokens[:-BLOCK_SIZE]))
        extra_keys: list[list[str] | None] = [[salt] if salt and before is None else None]
        return BlockStored([self.hashes[chain]], before, list(tokens[-BLOCK_SIZE:]), BLOCK_SIZE, extra_keys=extra_keys)


class MemorySource:
    """As ``EventSource``: what is held already, then every event."""

    def __init__(
        self, life: Life, residents: Residents, *, changed: Callable[[], None], restarted: Callable[[str], None]
    ) -> None:
        self._life, self._residents = life, residents
        self._changed, self._restarted = changed, restarted

    async def run(self) -> None:
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        for chain in self._life.hashes:
            events.put_nowait(self._life.stored(chain))
        self._life.followers.append(events)
        while (event := await events.get()) is not None:
            self._residents.apply([event])
            self._changed()
        self._restarted("gone")
        await asyncio.Event().wait()


class MemoryProcess:
    """As ``EngineProcess``."""

    def __init__(self, engine: MemoryEngine, life: Life) -> None:
        self._engine, self._life = engine, life

    @property
    def facts(self) -> EngineFacts:
        return EngineFacts(
            engine="memory",
            version="1.0",
            model=MODEL,
            root="/weights",
            max_model_len=MAX_MODEL_LEN,
            tokenizer="sha256:memory",
            template="",
            process=self._life.name,
            ranks={0: RankFacts(BLOCK_SIZE, BLOCKS, transport=(Capability(feature="events", mode="memory"),))},
            adapters=dict(self._engine.loaded),
            takes_policy=True,
        )

    async def poll(self) -> EnginePoll:
        return EnginePoll({0: LoadMetrics(usage=len(self._life.hashes) / BLOCKS)}, self._engine.present().name)

    def event_source(
        self, rank: int, residents: Residents, *, changed: Callable[[], None], restarted: Callable[[str], None]
    ) -> MemorySource | None:
        if not self._engine.publishes:
            return None
        return MemorySource(self._life, residents, changed=changed, restarted=restarted)


class MemoryEngine:
    """As ``Engine``; its tokens are the bytes of a prompt."""

    def __init__(self, *, publishes: bool = True) -> None:
        self.publishes = publishes
        self.loaded: dict[str, str] = {}
        self.policies = self.prompts = self.adapters = self
        self._names = count(1)
        self._numbers = count(1)
        self._life: Life | None = None
        self.start()

    # The engine itself

    def start(self) -> None:
        self._life = self._life or Life(f"process-{next(self._names)}")

    def crash(self) -> None:
        self.present().publish(None)
        self._life = None

    def present(self) -> Life:
        if self._life is None:
            raise EngineUnreachableError("there is no engine")
        return self._life

    def generate(self, tokens: list[int], salt: str = "") -> int:
        """Cache a prompt's blocks; returns how many of its tokens were cached before."""
        life, cached = self.present(), 0
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            chain = salt, tuple(tokens[:end])
            if chain in life.hashes:
                cached = end
                continue
            life.hashes[chain] = next(self._numbers)
            life.publish(life.stored(chain))
        return cached

    def clear(self) -> None:
        self.present().hashes.clear()
        self.present().publish(AllBlocksCleared())

    def held_keys(self, keyer: Callable[[str], BlockKeyer]) -> set[BlockKey]:
        return {keyer(salt).keys(list(tokens))[-1] for salt, tokens in self.present().hashes}

    # As the agent sees it

    async def connect(self) -> MemoryProcess:
        return MemoryProcess(self, self.present())

    async def put_policy(self, policy: Policy) -> Mapping[int, int]:
        self.present().generation = policy.generation
        return {0: policy.generation}

    async def hand_back(self) -> int:
        return 0

    async def end_conversations(self) -> int:
        return 0

    async def cache_prompt(
        self, model: str, prefix: Prefix, *, again: bool, timeout_seconds: float, rank: int | None
    ) -> PromptRun:
        tokens = _tokens(prefix)
        if len(tokens) >= MAX_MODEL_LEN:
            raise EngineRefusalError("the prompt is too long")
        return PromptRun(len(tokens), self.generate(tokens, prefix.salt), "length", (-0.5,))

    async def count_tokens(self, model: str, prefix: Prefix) -> int:
        return len(_tokens(prefix))

    async def served(self) -> Mapping[str, str]:
        return dict(self.loaded)

    async def load(self, name: str, path: str) -> None:
        if path.startswith("/missing"):
            raise EngineError(f"there is nothing at {path}")
        self.loaded[name] = path

    async def unload(self, name: str) -> None:
        self.loaded.pop(name, None)


def _tokens(prefix: Prefix) -> list[int]:
    if prefix.ids:
        return list(struct.unpack(f"<{len(prefix.ids) // 4}I", prefix.ids))
    if not prefix.messages:
        raise ValueError("neither messages nor ids")
    return [byte for message in msgspec.json.decode(prefix.messages) for byte in message["content"].encode()]
