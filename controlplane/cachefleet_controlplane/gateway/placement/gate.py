"""The hit thresholds that apply to a request: its own, and those of the pools that may answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.worker import Role


@dataclass(frozen=True, slots=True)
class Gate:
    """What holds for all attempts of a request."""

    speaks: bool = False
    """Its API has a word for a refusal."""
    own: float | None = None
    """The caller's threshold."""
    split: bool = False
    """The fleet has Prefill and Decode pools."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Of the pools that answer, by key."""
    decoding: frozenset[str] = frozenset()
    """Keys of the Decode pools."""
    one_prompt: bool = True
    """What is known of it is all there is: of several prompts only the first is routed by, or could be transferred."""

    @classmethod
    def of(cls, ask: RequestInfo, model: ServedModel) -> Gate:
        answering = [pool for pool in model.declared if pool.spec.role is not Role.PREFILL]
        roles = {pool.spec.role for pool in model.declared}
        return cls(
            speaks=ask.endpoint in {Endpoint.CHAT, Endpoint.COMPLETIONS},
            own=ask.threshold,
            split={Role.PREFILL, Role.DECODE} <= roles,
            thresholds={pool.key: pool.spec.hit.threshold for pool in answering},
            decoding=frozenset(pool.key for pool in answering if pool.spec.role is Role.DECODE),
            one_prompt=ask.prompts == 1,
        )

    @property
    def callers(self) -> bool:
        """A refusal is what its caller wants to hear."""
        return self.own is not None and not self.split

    @property
    def ours(self) -> bool:
        """Attempts are held to a threshold by us: what says nothing of it runs with 0."""
        return self.split or any(threshold > 0 for threshold in self.thresholds.values())

    def threshold(self, pool: str) -> float:
        """For a worker of that pool."""
        return self.thresholds.get(pool, 0.0) if self.own is None else self.own

    def decodes(self, pool: str) -> bool:
        """Workers of that pool may have the prompt computed by a Prefill worker."""
        return self.split and self.one_prompt and pool in self.decoding

    def decode_first(self, pool: str) -> bool:
        """B16: the caller has the field, 0 included, or the pool a threshold."""
        return self.own is not None or self.threshold(pool) > 0
