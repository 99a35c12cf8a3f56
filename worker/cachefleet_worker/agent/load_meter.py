"""Turns an engine's polls into the load that is reported: rates out of growing sums. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

from cachefleet_core.report_fields import HeldBlocks
from cachefleet_worker.agent.engines.engine_poll import LoadMetrics, RankStats
from cachefleet_worker.agent.health import Reading

MOST_RATE: Final = 1e9
"""More would make the worker's whole report invalid."""
_SAMPLES_NEEDED: Final = 3
_WINDOW: Final = 16


@dataclass(frozen=True, slots=True)
class Load:
    """One rank's load as it is reported; zeros and None before the first scrape."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int | None = None
    blocks_total: int = 0
    blocks_free: int = 0
    blocks_idle: int | None = None
    idle_by_salt: dict[str, int] = field(default_factory=dict)
    """Idle cached blocks of tenants, by the digests of their salts."""
    held_by_salt: dict[str, HeldBlocks] = field(default_factory=dict)
    """The same of tenants that have a contract, and what was evicted against it."""
    preemptions: int = 0
    prefill_tokens_per_second: float | None = None
    loaded_tokens_per_second: float | None = None
    inter_token_seconds: float | None = None
    prefix_queries: int = 0
    prefix_hits: int = 0
    generation: int | None = None
    """Generation of the policy in force in the engine; None without the plugin."""
    flushed: int = 0
    """Blocks that somebody had flushed, since the engine's start."""


class Rate:
    """Quotient of two growing sums over the last intervals in which both grew; None until there are three.

    An interval lasts until both have grown, so that sums updated at different times stay together.
    """

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._grown: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, numerator: float, denominator: float) -> None:
        """Take a reading of both sums; one that shrank (an engine restart) drops the intervals so far."""
        if self._last is None:
            self._last = (numerator, denominator)
            return
        grown = (numerator - self._last[0], denominator - self._last[1])
        if grown[0] < 0 or grown[1] < 0:
            self._grown.clear()
        elif grown[0] > 0 and grown[1] > 0:
            self._grown.append(grown)
        else:
            return
        self._last = (numerator, denominator)

    @property
    def value(self) -> float | None:
        """Numerator per denominator over the last 16 intervals, within what a report takes; None before the third."""
        if len(self._grown) < _SAMPLES_NEEDED:
            return None
        return min(MOST_RATE, sum(n for n, _ in self._grown) / sum(d for _, d in self._grown))


class LoadMeter:
    """Turns one rank's scrapes into its load. ``devices`` each load their part of a token at once."""

    def __init__(self, blocks_total: int, devices: int = 1) -> None:
        self._blocks_total = blocks_total
        self._devices = devices
        self._prefill = Rate()
        self._loading = Rate()
        self._inter_token = Rate()
        self.reading = Reading()
        self.load = Load(blocks_total=blocks_total, blocks_free=blocks_total)

    def add(self, load_metrics: LoadMetrics, stats: RankStats | None = None) -> Load:
        """Take a scrape; the plugin's own ``stats`` replace what would be derived from it."""
        self.reading = Reading(load_metrics.corrupted, load_metrics.errors, load_metrics.answered)
        self._prefill.add(load_metrics.prefill_tokens, load_metrics.prefill_seconds)
        self._loading.add(load_metrics.loaded_tokens, load_metrics.loading_seconds / self._devices)
        self._inter_token.add(load_metrics.inter_token_sum, load_metrics.inter_token_count)
        load = Load(
            running=load_metrics.running,
            waiting=load_metrics.waiting,
            blocks_total=self._blocks_total,
            blocks_free=round((1.0 - load_metrics.usage) * self._blocks_total),
            preemptions=load_metrics.preemptions,
            prefill_tokens_per_second=self._prefill.value,
            loaded_tokens_per_second=self._loading.value,
            inter_token_seconds=self._inter_token.value,
            prefix_queries=load_metrics.prefix_queries,
            prefix_hits=load_metrics.prefix_hits,
        )
        self.load = load if stats is None else _with_stats(load, stats)
        return self.load


def _with_stats(load: Load, stats: RankStats) -> Load:
    return replace(
        load,
        waiting_tokens=stats.waiting_tokens,
        blocks_free=load.blocks_free if stats.blocks_free is None else stats.blocks_free,
        blocks_idle=stats.blocks_idle,
        idle_by_salt=stats.idle_by_salt,
        held_by_salt=stats.held_by_salt,
        generation=max(0, stats.generation),
        flushed=stats.flushed,
    )
