"""Models that other control planes serve, as their pools declare them. Pure.

All control planes see all pools, so they agree on what a model's name means, and where it is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from cachefleet_controlplane.workers.views import ModelElsewhere, ServedModel
from cachefleet_core.pool.model_names import ModelNames
from cachefleet_core.pool.spec import PrefixCachePool

Fleet = tuple[str, str]
"""Namespace and model name."""


class ModelsElsewhere:
    """The models of pools of other control planes; ``created`` has when each fleet was first seen, in Unix seconds.

    ``names`` and ``adapter_names`` are those of all pools, own ones too.
    """

    def __init__(
        self,
        pools: Sequence[PrefixCachePool] = (),
        *,
        names: ModelNames | None = None,
        adapter_names: ModelNames | None = None,
        created: Mapping[Fleet, int] | None = None,
    ) -> None:
        self._names, self._adapter_names = names or ModelNames(()), adapter_names or ModelNames(())
        self._created = created or {}
        self._pools = {pool.key: pool for pool in sorted(pools, key=lambda pool: pool.key)}
        self._fleets: dict[Fleet, list[PrefixCachePool]] = {}
        for pool in self._pools.values():
            self._fleets.setdefault(fleet_of(pool), []).append(pool)

    def of(self, asked: str) -> ModelElsewhere | None:
        """The model or adapter that a name means, qualified or not; None where no other control plane serves it."""
        fleet, adapter = self._names.resolve(asked), ""
        if fleet is None and (claim := self._adapter_names.owner(asked)) and (pool := self._pools.get(claim.pool)):
            fleet, adapter = fleet_of(pool), claim.model
        pools = (
            [pool for pool in self._fleets.get(fleet, ()) if not adapter or adapter in _adapters(pool)] if fleet else []
        )
        if not pools:
            return None
        return ModelElsewhere(served_model(asked, pools, adapter, self._created.get), pools[0].spec.control_plane)

    def all(self) -> list[ModelElsewhere]:
        """Every model and adapter once, under the shortest name by which it is asked for, sorted by that."""
        found = (self.of(name) for name in {*self._model_names(), *self._shown_adapters()})
        return sorted((one for one in found if one is not None), key=lambda one: one.model.name)

    def _model_names(self) -> Iterator[str]:
        for fleet in self._fleets:
            yield self._names.shown(*fleet)

    def _shown_adapters(self) -> Iterator[str]:
        """The shortest name that means an adapter of one of the fleets; none where no name does."""
        named = {
            (namespace, one) for (namespace, _), pools in self._fleets.items() for p in pools for one in _adapters(p)
        }
        for namespace, adapter in named:
            for name in (adapter, f"{namespace}/{adapter}"):
                found = self.of(name)
                if found is not None and (found.model.namespace, found.model.upstream) == (namespace, adapter):
                    yield name
                    break


def fleet_of(pool: PrefixCachePool) -> Fleet:
    """The fleet that a pool is part of."""
    return pool.metadata.namespace, pool.spec.model.name


def served_model(
    asked: str, pools: Sequence[PrefixCachePool], adapter: str, created: Callable[[Fleet], int | None]
) -> ServedModel:
    """The pools of one fleet as what is asked for by a name: their model, or where not "" their ``adapter``."""
    namespace, name = fleet = fleet_of(pools[0])
    return ServedModel(
        name=asked,
        upstream=adapter or name,
        base=name,
        namespace=namespace,
        pools=tuple(pool.key for pool in pools),
        declared=tuple(pools),
        max_model_len=max(pool.spec.engine.max_model_len for pool in pools),
        created=created(fleet) or 0,
    )


def _adapters(pool: PrefixCachePool) -> set[str]:
    return {one.name for one in pool.spec.model.adapters}
