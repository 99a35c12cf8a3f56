"""What native code assumes of every worker: its throughput where nobody has measured it, and blocks of its own."""

from __future__ import annotations

from typing import Final

DEFAULT_TOKENS_PER_SECOND: Final = 4000.0
DEFAULT_BATCHED_TOKENS: Final = 2048
OWN_BLOCKS: Final = 1
"""The null block, which vLLM counts and never allocates."""
