"""How many tokens a text has, by what was learnt of texts before: an exponential mean of bytes per token, by model."""

from __future__ import annotations

from typing import Final

from cachefleet_runtime.lru import LruMap

START: Final = 4.0
"""Bytes per token, until a prompt of the model was seen."""
SMOOTHING: Final = 0.1
LEAST: Final = 0.25
MOST: Final = 64.0
"""One text of a strange kind moves the mean by no more than that."""
MAX_MODELS: Final = 1024


class TokenEstimates:
    """Of the MAX_MODELS models seen last."""

    def __init__(self, limit: int = MAX_MODELS) -> None:
        self._means: LruMap[str, float] = LruMap(limit)

    def bytes_per_token(self, model: str) -> float:
        return self._means.get(model, START)

    def tokens(self, model: str, size: int) -> int:
        """Of a text of ``size`` bytes; at least one where there is a text."""
        return max(1, round(size / self.bytes_per_token(model))) if size else 0

    def learn(self, model: str, *, size: int, tokens: int) -> None:
        """A text of ``size`` bytes had so many tokens."""
        if size < 1 or tokens < 1:
            return
        ratio = min(MOST, max(LEAST, size / tokens))
        mean = self.bytes_per_token(model)
        self._means.put(model, mean + SMOOTHING * (ratio - mean))
