"""The claims of all valid pools to the names of their models, as the control plane's replicas see them too (pure)."""

from __future__ import annotations

from cachefleet_core.pool.model_names import Claim, ModelNames, NameConflict, NameRules, claim_of, rivals
from cachefleet_core.pool.spec import PrefixCachePool


class NameClaims:
    """Claims by pool key; bounded by the number of pools."""

    def __init__(self, rules: NameRules | None = None) -> None:
        self._rules = rules
        self._claims: dict[str, Claim] = {}

    def put(self, pool: PrefixCachePool) -> tuple[str, ...]:
        """Note a pool. Returns the keys of the pools whose names it bears on, none where nothing changed."""
        new = claim_of(pool)
        if self._claims.get(pool.key) == new:
            return ()
        self._claims[pool.key] = new
        return self._rivals(new)

    def drop(self, key: str) -> tuple[str, ...]:
        """Forget a pool. Returns the keys of the pools whose names it bore on."""
        old = self._claims.pop(key, None)
        return self._rivals(old) if old else ()

    def conflict(self, key: str) -> NameConflict | None:
        """Why a pool's model is not asked for by its name alone; None where it is, or the pool is not noted."""
        mine = self._claims.get(key)
        if mine is None:
            return None
        named = (claim for claim in self._claims.values() if rivals(mine, claim))
        return ModelNames(named, self._rules).conflict(mine.namespace, mine.model)

    def _rivals(self, mine: Claim) -> tuple[str, ...]:
        others = (claim for claim in self._claims.values() if claim.pool != mine.pool)
        return tuple(sorted(claim.pool for claim in others if rivals(mine, claim)))
