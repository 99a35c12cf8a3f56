"""The prefill rate and latency assumed of each worker, from what all candidates have measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from msgspec import Struct

from cachefleet_controlplane.routing.throughput import DEFAULT_BATCHED_TOKENS, DEFAULT_TOKENS_PER_SECOND
from tests.reference.candidate import Candidate

DEFAULT_INTER_TOKEN_SECONDS: Final = 0.02
DEFAULT_LOADED_PER_SECOND: Final = 40_000.0
"""128 KiB a token, as of a model of 8 billion parameters, at 5 GB a second."""
OUTLIER: Final = 4.0
"""Only a worker this many times slower or faster than its pool's median is believed to be so."""


class Throughput(Struct, frozen=True):
    """What is assumed of one worker; numbers above 0."""

    tokens_per_second: float
    """Prompt tokens prefilled."""
    inter_token_seconds: float
    batched_tokens: int
    """Tokens computed in one step."""
    loaded_per_second: float = DEFAULT_LOADED_PER_SECOND
    """Tokens loaded from below the device."""
    loading_measured: bool = False
    """Whether any candidate has measured that."""

    @property
    def token_seconds(self) -> float:
        """How long a token takes where many are computed."""
        return 1 / self.tokens_per_second + self.inter_token_seconds / self.batched_tokens

    def seconds(self, tokens: int) -> float:
        """How long it takes to compute so many tokens."""
        steps = math.ceil(tokens / self.batched_tokens)
        return tokens / self.tokens_per_second + self.inter_token_seconds * steps


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Throughputs of the candidates of one decision."""

    rates: _Rates
    latencies: _Rates
    loading: _Rates

    @classmethod
    def learn(cls, candidates: Sequence[Candidate]) -> Self:
        """Medians of the candidates' measurements by pool; constants where nobody has measured."""
        return cls(
            _Rates.learn(((c.pool, c.tokens_per_second) for c in candidates), DEFAULT_TOKENS_PER_SECOND),
            _Rates.learn(((c.pool, c.inter_token_seconds) for c in candidates), DEFAULT_INTER_TOKEN_SECONDS),
            _Rates.learn(((c.pool, c.loaded_per_second) for c in candidates), DEFAULT_LOADED_PER_SECOND),
        )

    def of(self, view: Candidate) -> Throughput:
        """What is assumed of one candidate."""
        return Throughput(
            self.rates.resolve(view.pool, view.tokens_per_second),
            self.latencies.resolve(view.pool, view.inter_token_seconds),
            view.batched_tokens or DEFAULT_BATCHED_TOKENS,
            self.loading.resolve(view.pool, view.loaded_per_second),
            bool(self.loading.of_pool),
        )


@dataclass(frozen=True, slots=True)
class _Rates:
    """One rate of all pools. A worker has its pool's median, else that of all, else a constant; its own where that is
    far off.

    A pool is homogeneous, and a short measurement says more about its prompts than about the worker. A worker that is
    given little to do because it once measured badly would never measure better.
    """

    of_pool: Mapping[str, float] = field(default_factory=dict)
    default: float = 0.0

    @classmethod
    def learn(cls, measured: Iterable[tuple[str, float | None]], default: float) -> _Rates:
        """Medians of measured (pool, value) pairs, by pool and of all."""
        pools: dict[str, list[float]] = {}
        for pool, value in measured:
            if value:
                pools.setdefault(pool, []).append(value)
        if not pools:
            return cls(default=default)
        everything = [value for values in pools.values() for value in values]
        medians = {pool: statistics.median(values) for pool, values in pools.items()}
        return cls(medians, statistics.median(everything))

    def resolve(self, pool: str, value: float | None) -> float:
        """The rate of one worker, given its pool and own measurement."""
        usual = self.of_pool.get(pool, self.default)
        return value if value and not 1 / OUTLIER <= value / usual <= OUTLIER else usual
