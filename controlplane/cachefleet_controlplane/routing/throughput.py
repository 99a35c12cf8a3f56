"""What native code assumes of a worker's throughput where nobody has measured it (``native/src/throughput.rs``)."""

from __future__ import annotations

from typing import Final

DEFAULT_TOKENS_PER_SECOND: Final = 4000.0
DEFAULT_BATCHED_TOKENS: Final = 2048
