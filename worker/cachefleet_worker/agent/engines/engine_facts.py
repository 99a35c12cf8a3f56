"""What identifies an engine process, and what it can do: constant for the life of the process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cachefleet_core.engine.engine_configuration import EngineConfiguration
from cachefleet_core.hit_rule import CacheGroup
from cachefleet_core.report_frames import Capability

OFF: Final = "off"
SNAPSHOT: Final = "snapshot"
"""Feature: the engine gives everything that it holds at once, and says at once that its cache was cleared."""
_NOTHING_KNOWN: Final = EngineConfiguration()


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One data-parallel rank: its block pool, and how its block events arrive."""

    block_size: int
    blocks: int
    """Blocks that can hold something."""
    boot: str = ""
    """Names the process behind the rank; "" where the engine gives it no name."""
    groups: tuple[CacheGroup, ...] = ()
    """The KV cache groups that take part in prefix caching; empty where the engine does not tell them."""
    lookahead: int | None = None
    """Tokens after a block that its hash covers; None where only its events show that."""
    block_bytes: int = 0
    """Bytes of a block as cache budgets count blocks; 0 where unknown."""
    block_tokens: int = 0
    """Tokens that fill such a block."""
    transport: tuple[Capability, ...] = ()
    """How its events arrive, and whether missed ones can be had again."""
    configuration: EngineConfiguration = _NOTHING_KNOWN
    """What the engine says of its configuration."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """One engine process, with its ranks."""

    engine: str
    """Name of the engine; control planes render prompts as this engine does."""
    version: str
    model: str
    root: str
    """What the model was loaded from."""
    max_model_len: int
    """Most tokens of a prompt and its answer; 0 where unknown."""
    tokenizer: str
    """Digest of probe texts' token ids."""
    template: str
    """The same of the chat template; "" where there is none."""
    process: str | None
    """Identifies the process, as ``EnginePoll.process``; None where unknown."""
    ranks: Mapping[int, RankFacts]
    adapters: Mapping[str, str] = field(default_factory=dict)
    """The adapters served, in the order in which they were loaded, and from where."""
    endpoints: tuple[str, ...] | None = None
    """Paths that it takes a POST at; None where it does not tell."""
    features: tuple[Capability, ...] = ()
    """What it can do besides serving requests and block events."""
    plugin: str = ""
    """Version of the worker plugin; "" where it has none, or does not tell."""
    takes_policy: bool = False
    """Whether it enforces a policy; else everything that a policy asks of an engine is left out."""
    devices: int = 1
    """Devices that each hold a part of every token (tensor parallelism)."""
    lookahead: int = 0
    """Tokens after a block that its hash covers, as events of this process showed."""

    @property
    def boot(self) -> str:
        """Name of the process, by its first rank; "" where it has none."""
        return self.ranks[0].boot if 0 in self.ranks else ""

    def mode(self, feature: str) -> str:
        """Mode of a feature; "off" where the engine does not name it."""
        return next((each.mode for each in reversed(self.features) if each.feature == feature), OFF)
