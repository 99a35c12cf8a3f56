"""A modelled fleet of equal workers: their number, blocks and rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A fleet of equal workers. ``blocks`` are those of one worker that requests can have; times are in seconds."""

    workers: int = 4
    blocks: int = 5000
    prefill_tokens_per_second: float = 375.0
    inter_token_seconds: float = 0.02
    batched_tokens: int = 64
    running: int = 64
    model_len: int = 4096
    report_lag: float = 0.05
    state_every: float = 1.0
    budget_blocks: int | None = None
    """Idle blocks that a worker keeps; None for all."""
    replicas: int = 1
    """Of the control plane; each request comes to one of them by chance."""
    share_seconds: float | None = 0.03
    """How late each knows of others' requests in flight; None: only what reports show."""

    def longest(self, block_size: int) -> int:
        """Tokens of prompt and answer that a worker takes when it has nothing else."""
        return min(self.model_len, self.blocks * block_size)
