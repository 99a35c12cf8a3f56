"""The claims of all pools, valid or not, to their models' names, as the control plane's replicas see them (pure)."""

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
        return self.put_claim(claim_of(pool))

    def put_claim(self, new: Claim) -> tuple[str, ...]:
        """Note the claim of a pool, which may be one that cannot be read otherwise."""
        if self._claims.get(new.pool) == new:
            return ()
        self._claims[new.pool] = new
        return self._rivals(new)

    def keys(self) -> set[str]:
        """Keys of all pools that are noted."""
        return set(self._claims)

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
