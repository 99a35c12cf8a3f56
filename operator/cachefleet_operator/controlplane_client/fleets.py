"""Fleets: pools of one namespace that serve the same model name and must have the same block keys (pure).

Compared are specs, so that a difference shows before a worker has started, and the contracts that workers announced.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cachefleet_core.fleet_status.pool_facts import ContractFacts
from cachefleet_core.pool.spec import PrefixCachePool


@dataclass(frozen=True, slots=True)
class Declared:
    """The fields of a pool's spec that its block keys depend on."""

    key: str
    namespace: str
    model: str
    source: str
    revision: str
    block_size: int


class Fleets:
    """Declarations of all valid pools, by key; bounded by the number of pools."""

    def __init__(self) -> None:
        self._pools: dict[str, Declared] = {}

    def put(self, pool: PrefixCachePool) -> tuple[str, ...]:
        """Note a pool. Returns the keys of other pools in its present and former fleet, none where nothing changed."""
        new, old = declared(pool), self._pools.get(pool.key)
        if new == old:
            return ()
        self._pools[pool.key] = new
        return tuple({*self._beside(new), *(self._beside(old) if old else ())})

    def drop(self, key: str) -> tuple[str, ...]:
        """Forget a pool. Returns the keys of the other pools in its fleet."""
        old = self._pools.pop(key, None)
        return self._beside(old) if old else ()

    def beside(self, key: str) -> list[Declared]:
        """The other pools of a pool's fleet."""
        mine = self._pools.get(key)
        return [self._pools[other] for other in self._beside(mine)] if mine else []

    def keys(self) -> set[str]:
        """Keys of all noted pools."""
        return set(self._pools)

    def get(self, key: str) -> Declared | None:
        """A pool's declaration, None where it is not noted."""
        return self._pools.get(key)

    def _beside(self, mine: Declared) -> tuple[str, ...]:
        same = (mine.namespace, mine.model)
        found = (each for each in self._pools.values() if (each.namespace, each.model) == same)
        return tuple(sorted(each.key for each in found if each.key != mine.key))


def declared(pool: PrefixCachePool) -> Declared:
    """The declaration in a pool's spec."""
    model = pool.spec.model
    weights, revision = model.contract_names
    return Declared(
        key=pool.key,
        namespace=pool.metadata.namespace,
        model=model.name,
        source=weights,
        revision=revision,
        block_size=pool.spec.block_size,
    )


def disagreement(
    mine: Declared, others: Iterable[tuple[Declared, ContractFacts | None]], contract: ContractFacts | None
) -> str:
    """How a pool differs from the first other of its fleet with a difference, "" where it differs from none."""
    for other, its_contract in others:
        if difference := _declared_difference(mine, other) or _announced_difference(contract, its_contract):
            field, here, there = difference
            name = other.key.partition("/")[2]
            return f"pool {name} serves model {mine.model} too, with {field} {there}; here it is {here}"
    return ""


_Difference = tuple[str, object, object]


def _declared_difference(mine: Declared, other: Declared) -> _Difference | None:
    if mine.block_size != other.block_size:
        return "engine.blockSize", mine.block_size, other.block_size
    if mine.source != other.source:
        return "model.source", mine.source, other.source
    if mine.revision and other.revision and mine.revision != other.revision:
        return "model.revision", mine.revision, other.revision
    return None


def _announced_difference(mine: ContractFacts | None, other: ContractFacts | None) -> _Difference | None:
    if mine is None or other is None:
        return None
    for field in ("block_size", "weights", "revision", "tokenizer", "key_version", "lookahead"):
        here, there = getattr(mine, field), getattr(other, field)
        if here != there:
            return f"contract field {field}", here, there
    return None
