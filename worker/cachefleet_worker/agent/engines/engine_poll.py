"""What one poll of an engine shows: load, suspensions, statistics. Values alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from cachefleet_core.report_fields import HeldBySalt, IdleBySalt, Text

Count = Annotated[int, Meta(ge=0)]
BootId = Annotated[str, Meta(min_length=1, max_length=253)]


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """One rank's load. Token and time sums are cumulative since the engine started."""

    running: int = 0
    waiting: int = 0
    usage: float = 0.0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefill_tokens: float = 0.0
    prefill_seconds: float = 0.0
    loaded_tokens: float = 0.0
    """Prompt tokens loaded from the host's memory or a disk."""
    loading_seconds: float = 0.0
    """Time of the transfers to the device, each device's own."""
    inter_token_sum: float = 0.0
    inter_token_count: float = 0.0
    asleep: bool = False
    corrupted: int = 0
    """Requests with NaN in their logits, where the engine checks for it."""
    errors: int = 0
    """Requests that ended with an internal error."""
    answered: int = 0
    """Requests that ended otherwise; those aborted by their client are left out."""
    host_blocks: int | None = None
    """Blocks that its connector has room for in the host's memory; None where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Operations:
    """Sleep and weight updates requested of the engine, over all ranks."""

    sleeping: bool = False
    """It is being put to sleep or woken."""
    updating: bool = False
    """Its weights are being updated."""
    sleeps: int = 0
    """How often its memory was given back, since its start; 0 where it does not tell."""


AWAKE: Final = Operations()


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """One reading of adapter use; 0 slots where the engine reports none (no adapters, or no request yet)."""

    slots: int = 0
    busy: tuple[str, ...] = ()
    """Adapters with requests."""


UNUSED: Final = AdapterUse()


class RankStats(Struct, frozen=True):
    """The plugin's statistics of one rank: its load, and the generation of the policy in force there."""

    boot: BootId
    sequence: int = -1
    running: Count = 0
    waiting: Count = 0
    waiting_tokens: Count | None = None
    blocks_total: Count = 0
    blocks_free: Count | None = None
    blocks_idle: Count | None = None
    budget_blocks: Count | None = None
    idle_by_salt: IdleBySalt = msgspec.field(default_factory=dict)
    """Idle cached blocks of tenants, by the digests of their salts."""
    held_by_salt: HeldBySalt = msgspec.field(default_factory=dict)
    """The same of tenants that have a contract, and what was evicted against it."""
    generation: int = -1
    """-1 before any policy was applied."""
    flushed: Count = 0
    """Blocks that somebody had flushed, since the engine's start."""
    suspended: Text | None = None
    """A Suspension, "" where it serves; None from an older plugin."""
    unfinished: Count | None = None
    """Requests that a step could go on with; None from an older plugin."""

    @property
    def unfinished_requests(self) -> int:
        """The same, or all that there are."""
        return self.running + self.waiting if self.unfinished is None else self.unfinished


@dataclass(frozen=True, slots=True)
class EnginePoll:
    """One answered poll of an engine."""

    ranks: Mapping[int, LoadMetrics]
    process: str | None = None
    """Identifies the process, by its start times for example; None where unknown."""
    adapters: AdapterUse = UNUSED
    operations: Operations = AWAKE
    stats: Mapping[int, RankStats] = field(default_factory=dict)
    """Of the ranks for which a plugin answered."""
    silent: bool = False
    """The plugin, which answers between the engine's steps, did not do so in time."""
    paused: bool = False
    """The engine says that it is paused, where the plugin does not say whether it is."""
