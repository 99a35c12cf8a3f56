"""Aliases of models: which models a name means that no model or adapter has itself. Pure.

An alias is a name, or a pattern in which ``*`` stands for any characters, none too. It belongs to a namespace as names
of models do (``cachefleet_core.pool.model_names``), and several models of that namespace may share it by weights. A
name goes before patterns, and of these the one with most characters that are not ``*``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cachefleet_core.pool.model_names import ModelNames, NameRules, alias_claims
from cachefleet_core.pool.spec import PrefixCachePool

ANY: Final = "*"
MAX_NAME: Final = 512
"""Characters of a name that may match a pattern: it stands in every event of the answer."""


class AliasShare(NamedTuple):
    """A model that an alias means, and its share of the requests."""

    namespace: str
    model: str
    weight: int
    """Relative to the others'; over 0."""


class ModelAliases:
    """The aliases of all pools, each with its place in the order of declaration."""

    def __init__(self, pools: Iterable[tuple[PrefixCachePool, int]] = (), rules: NameRules | None = None) -> None:
        placed = list(pools)
        self._names = ModelNames((claim for pool, place in placed for claim in alias_claims(pool, place)), rules)
        self._shares: dict[tuple[str, str], dict[str, int]] = {}
        for pool, _ in placed:
            self._add(pool)
        patterns = (alias for alias in self._shares if ANY in alias[1])
        self._patterns = sorted(patterns, key=lambda alias: (alias[1].count(ANY) - len(alias[1]), alias))

    def _add(self, pool: PrefixCachePool) -> None:
        model = pool.spec.model
        for alias in model.aliases if model.alias_weight else ():
            weights = self._shares.setdefault((pool.metadata.namespace, alias), {})
            weights[model.name] = max(model.alias_weight, weights.get(model.name, 0))

    def of(self, asked: str) -> tuple[AliasShare, ...]:
        """The models that a name means, by their names; () where it is no alias."""
        if not self._shares or len(asked) > MAX_NAME:
            return ()
        found = self._names.resolve(asked) or self._matching(asked)
        return () if found is None else self._of(*found)

    def shown(self, *, patterns: bool = False) -> list[str]:
        """Every alias under the shortest name that means it, with the ``patterns`` or without; sorted."""
        return sorted(self._names.shown(*alias) for alias in self._shares if patterns or ANY not in alias[1])

    def means(self, asked: str, pool: PrefixCachePool) -> bool:
        """Whether an alias, as it is declared, means the model of a pool."""
        own = (pool.metadata.namespace, pool.spec.model.name)
        found = self._names.resolve(asked)
        return found is not None and own in ((share.namespace, share.model) for share in self._of(*found))

    def owner(self, asked: str) -> str:
        """The pool that has an alias, as it is declared; "" where none may have it."""
        claim = self._names.owner(asked)
        return "" if claim is None else claim.pool

    def _of(self, namespace: str, alias: str) -> tuple[AliasShare, ...]:
        weights = self._shares.get((namespace, alias), {})
        return tuple(AliasShare(namespace, model, weight) for model, weight in sorted(weights.items()))

    def _matching(self, asked: str) -> tuple[str, str] | None:
        """The namespace of the pattern that a name matches, and the pattern; the name may have the namespace first."""
        namespace, slash, rest = asked.partition("/")
        for own, pattern in self._patterns if slash else ():
            if own == namespace and matches(pattern, rest) and self._is(f"{own}/{pattern}", own, pattern):
                return own, pattern
        for own, pattern in self._patterns:
            if matches(pattern, asked) and self._is(pattern, own, pattern):
                return own, pattern
        return None

    def _is(self, asked: str, namespace: str, alias: str) -> bool:
        return self._names.resolve(asked) == (namespace, alias)


def matches(pattern: str, name: str) -> bool:
    """Whether a name is a pattern with characters for each ``*``; takes no longer than pattern times name."""
    first, *rest = pattern.split(ANY)
    if not rest:
        return name == pattern
    if not name.startswith(first):
        return False
    last = rest.pop()
    return _in_order(rest, name[len(first) :], last)


def _in_order(parts: Sequence[str], text: str, last: str) -> bool:
    """Whether a text has these parts, one after the other, and ends with the ``last`` one."""
    for part in parts:
        _, found, text = text.partition(part) if part else ("", True, text)
        if not found:
            return False
    return text.endswith(last)
