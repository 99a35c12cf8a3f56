"""The hit thresholds that apply to a request: its own, and those of pools that may answer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import Role
from cachefleet_runtime.known_results import known_of_tuples

_SPEAKING: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)


class HitThresholds(Struct, frozen=True):
    """The thresholds and pool roles that hold for all attempts of a request."""

    speaks: bool = False
    """Its API can express a gate's refusal."""
    own: float | None = None
    """The caller's threshold; None without one."""
    split: bool = False
    """The fleet has Prefill and Decode pools."""
    thresholds: Mapping[str, float] = {}
    """Thresholds of the pools that answer, by pool key."""
    decoding: frozenset[str] = frozenset()
    """Keys of the Decode pools."""
    one_prompt: bool = True
    """It has one prompt: of several only the first is routed by, or could be transferred."""

    @classmethod
    def of(cls, info: RequestInfo, model: ServedModel) -> HitThresholds:
        """Take the thresholds and roles from the pools of a model as declared; Prefill pools answer nothing."""
        split, thresholds, decoding = _of_pools(model.declared)
        speaks = info.endpoint in _SPEAKING
        return cls(speaks, info.threshold, split, thresholds, decoding, info.prompts == 1)

    @property
    def callers(self) -> bool:
        """A refusal is passed to the caller, which has set a threshold in a fleet that is not split."""
        return self.own is not None and not self.split

    @property
    def ours(self) -> bool:
        """The gateway sets thresholds: a request without one of its own is sent 0."""
        return self.split or any(self.thresholds.values())

    def threshold(self, pool: str) -> float:
        """Return the threshold for a worker of that pool: the caller's, else the pool's, else 0."""
        return self.thresholds.get(pool, 0.0) if self.own is None else self.own

    def decodes(self, pool: str) -> bool:
        """Whether a Prefill worker may compute the prompt for workers of that pool."""
        return self.split and self.one_prompt and pool in self.decoding

    def decode_first(self, pool: str) -> bool:
        """Whether a Decode worker goes first (B16): the caller has the field, 0 included, or the pool a threshold."""
        return self.own is not None or self.threshold(pool) > 0


NO_THRESHOLDS: Final = HitThresholds()


@known_of_tuples
def _of_pools(pools: Iterable[PrefixCachePool]) -> tuple[bool, Mapping[str, float], frozenset[str]]:
    """Whether they are split, and of those that answer the thresholds and the Decode pools."""
    answering = [pool for pool in pools if pool.spec.role is not Role.PREFILL]
    decoding = frozenset(pool.key for pool in answering if pool.spec.role is Role.DECODE)
    split = bool(decoding) and any(pool.spec.role is Role.PREFILL for pool in pools)
    return split, {pool.key: pool.spec.hit.threshold for pool in answering}, decoding
