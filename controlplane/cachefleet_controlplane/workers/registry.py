"""The registry of pools and workers: what the pool source lists, joined with what agents announce."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import cachefleet_native

from cachefleet_controlplane.index.worker_id import WorkerId, worker_id
from cachefleet_controlplane.pools.model_aliases import ModelAliases
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt
from cachefleet_controlplane.routing.prompt_blocks import KEY_BYTES, needed_blocks
from cachefleet_controlplane.workers.hit_window import DEFAULT_WINDOW_SECONDS, HitWindow
from cachefleet_controlplane.workers.models_elsewhere import ModelsElsewhere, fleet_of, served_model
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.refuted_blocks import RefutedBlocks
from cachefleet_controlplane.workers.views import AliasedModel, ModelElsewhere, ServedModel
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting
from cachefleet_core.engine.engine_arguments import engine_policy
from cachefleet_core.fleet_status.pool_facts import AdapterConflict, AliasConflict
from cachefleet_core.pool.model_names import Claim, ModelNames, NameRules, adapter_claims, claim_of
from cachefleet_core.report_frames import Policy

MAX_UNLISTED: Final = 1024
"""Workers, each rank for itself, that announced themselves and that the pool source does not list (yet)."""


@dataclass(frozen=True, slots=True)
class Change:
    """Consequences of a new state of the pools."""

    new_policy: list[Pool]
    """Known pools whose workers must be sent a new policy."""
    removed: list[Worker]


class Registry:
    """All pools by key and all workers by id."""

    def __init__(
        self,
        wall: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        name_rules: NameRules | None = None,
    ) -> None:
        self.pools: dict[str, Pool] = {}
        self.refuted_blocks = RefutedBlocks(clock)
        """Blocks that engines have denied lately."""
        self.paid_waiting = PaidWaiting()
        self.note_paid: Callable[[Worker, bytes, float], None] = _nobody
        """Called where a request sent to a worker waits so many seconds more for a prefix; 0: it computes a copy."""
        self.plane = cachefleet_native.Plane()
        """All workers as decisions see them."""
        self.version = 0
        """Raised whenever a pool, its workers or their contracts change."""
        self.wall = wall
        self._clock = clock
        self._created: dict[tuple[str, str], int] = {}
        self._name_rules = name_rules
        self._names = ModelNames((), name_rules)
        self._adapter_names = ModelNames((), name_rules)
        """Names of adapters, which give way to those of models."""
        self._aliases = ModelAliases()
        self._elsewhere = ModelsElsewhere()
        self._known_at = 0
        self._fleets: dict[str, tuple[Pool, ...]] = {}
        self._served: dict[str, ServedModel] = {}
        """Both by model names that were asked for and are served, as of version ``_known_at``."""

    def update(
        self, views: Sequence[PoolView], unread: Iterable[Claim] = (), others: Sequence[PoolView] = ()
    ) -> Change:
        """Apply the whole state of a pool source; ``unread`` are the claims of pools that cannot be read. ``others``
        are pools of other control planes: of them only the names of their models count.
        """
        self.version += 1
        before = list(self.workers())
        declared = {view.key for view in views}
        self.pools = {key: pool for key, pool in self.pools.items() if key in declared}
        changed = [pool for view in views if (pool := self._update_pool(view)) is not None]
        named = (*views, *others)
        claims = {view.key: claim_of(view.pool, view.place) for view in named} | {one.pool: one for one in unread}
        self._names = ModelNames(claims.values(), self._name_rules)
        adapters = (claim for view in named for claim in adapter_claims(view.pool, view.place))
        self._adapter_names = ModelNames(adapters, self._name_rules)
        self._aliases = ModelAliases(((view.pool, view.place) for view in named), self._name_rules)
        fleets, now = {fleet_of(view.pool) for view in named}, int(self.wall())
        self._created = {fleet: self._created.get(fleet, now) for fleet in fleets}
        self._elsewhere = ModelsElsewhere(
            [view.pool for view in others],
            names=self._names,
            adapter_names=self._adapter_names,
            created=self._created,
        )
        kept = set(map(id, self.workers()))
        return Change(new_policy=changed, removed=[worker for worker in before if id(worker) not in kept])

    def admitted(self) -> list[Pool]:
        """The pools whose workers are told what to do."""
        return [pool for pool in self.pools.values() if pool.policy is not None]

    def workers(self) -> Iterator[Worker]:
        """All ranks of all workers, by pool."""
        for pool in self.pools.values():
            yield from pool.workers.values()

    def worker(self, worker: WorkerId) -> Worker | None:
        """The rank with this id; None where there is none."""
        for pool in self.pools.values():
            known = pool.workers.get(worker)
            if known is not None:
                return known
        return None

    def named(self, worker: str) -> Iterator[Worker]:
        """The rank with this id, or all ranks of the worker with this full name."""
        return (known for known in self.workers() if worker in (known.full_name, known.id))

    def announce(self, pool: Pool, name: str, rank: int) -> Worker | None:
        """The worker of a Hello, new or known; None where too many unlisted ones are known."""
        known = pool.workers.get(worker_id(pool.key, name, rank))
        if known is not None:
            return known
        sibling = pool.workers.get(worker_id(pool.key, name))
        endpoint = sibling.endpoint if sibling else None
        if endpoint is None and sum(worker.endpoint is None for worker in self.workers()) >= MAX_UNLISTED:
            return None
        worker = Worker(pool.key, name, rank, self.plane.row(), endpoint=endpoint, worth=pool.shown)
        pool.workers[worker.id] = worker
        self.version += 1
        return worker

    def settle(self, pool: Pool) -> None:
        """A worker of a pool has sent a Hello: choose the contract again."""
        pool.settle_contract()
        self.version += 1

    def remove(self, worker: Worker) -> None:
        """Remove a rank; the pool's contract is chosen again."""
        pool = self.pools.get(worker.pool)
        if pool is not None:
            pool.workers.pop(worker.id, None)
            self.settle(pool)  # it may have been the last one with the contract in force

    # Placements.

    def paid(self, decision: Decision, prompt: Prompt, now: float) -> float:
        """Seconds waited lately for the longest prefix of a prompt that a candidate held."""
        return self.paid_waiting.of(_last_key(decision.prefix_tokens, prompt), now)

    def sent(self, worker: Worker, decision: Decision, prompt: Prompt, now: float) -> None:
        """A request is about to be sent to a worker."""
        pool = self.pools.get(worker.pool)
        if pool is not None:
            pool.used_at = now
        if pool is not None and prompt.continued:
            pool.counted_before(prompt.tokens, decision.predicted_tokens, now)
        elif pool is not None and decision.knowledge is Knowledge.EXACT and prompt.block_size:
            self._learn(pool, worker, decision, prompt, now)
        if prompt.adapter:
            worker.use_adapter(prompt.adapter)

    def _learn(self, pool: Pool, worker: Worker, decision: Decision, prompt: Prompt, now: float) -> None:
        """What a request shows of what work and evictions cost in its pool."""
        held = (prompt.tokens - decision.uncached_tokens) // prompt.block_size
        found = decision.prefix_tokens // prompt.block_size
        self._pay(worker, decision, prompt, now, copied=held < found)
        pool.weigh(now)
        evicting = worker.row.evicts(needed_blocks(prompt) - held)
        pool.worth.blocks.ask(prompt.keys, held=held, found=found, evicting=evicting, room=pool.room)
        pool.worth.sent(prompt.tokens, decision.uncached_tokens)

    def _pay(self, worker: Worker, decision: Decision, prompt: Prompt, now: float, *, copied: bool) -> None:
        """A request waits for a prefix, or computes a copy of it for what others have waited."""
        if decision.paid_seconds and copied:
            self.paid_waiting.spend(prefix := _last_key(decision.prefix_tokens, prompt))
            self.note_paid(worker, prefix, 0.0)
        elif decision.excess_seconds:
            self.paid_waiting.add(prefix := _last_key(decision.prefix_tokens, prompt), decision.excess_seconds, now)
            self.note_paid(worker, prefix, decision.excess_seconds)

    # Fleets.

    def fleet(self, model: str) -> list[Pool]:
        """The pools that serve a model or an adapter, which may be qualified as "namespace/name"; sorted by key."""
        self._refresh()
        known = self._fleets.get(model)
        if known is None:
            known = self._find(model)
            if known:
                self._fleets[model] = known
        return list(known)

    def _refresh(self) -> None:
        if self._known_at != self.version:
            self._fleets.clear()
            self._served.clear()
            self._known_at = self.version

    def _find(self, model: str) -> tuple[Pool, ...]:
        meant, adapter = self._names.resolve(model), ""
        if meant is None and (claim := self._adapter_names.owner(model)) is not None and claim.pool in self.pools:
            meant, adapter = self.pools[claim.pool].fleet, claim.model
        found = (pool for pool in self.pools.values() if pool.fleet == meant and (not adapter or pool.has(adapter)))
        return tuple(sorted(found, key=lambda pool: pool.key))

    def models(self) -> list[ServedModel]:
        """Every fleet once, under the shortest name by which it is asked for, sorted by that."""
        names = {self._names.shown(*pool.fleet) for pool in self.pools.values()}
        return [served for name in sorted(names) if (served := self.serving(name)) is not None]

    def adapters(self) -> list[ServedModel]:
        """Every adapter that can be asked for, as ``models`` has the fleets."""
        named = {(pool.fleet[0], one.name) for pool in self.pools.values() for one in pool.declared.spec.model.adapters}
        found = (self._shown_adapter(*each) for each in named)
        return sorted((served for served in found if served is not None), key=lambda served: served.name)

    def _shown_adapter(self, namespace: str, adapter: str) -> ServedModel | None:
        """A namespace's adapter under the shortest name that means it; None where none does."""
        asked = (self.serving(name) for name in (adapter, f"{namespace}/{adapter}"))
        meant = (namespace, adapter)
        return next((one for one in asked if one and one.is_adapter and (one.namespace, one.upstream) == meant), None)

    def adapter_conflicts(self, pool: Pool) -> tuple[AdapterConflict, ...]:
        """The adapters of a pool that their names alone do not mean."""
        found = (self._adapter_conflict(pool, one.name) for one in pool.declared.spec.model.adapters)
        return tuple(conflict for conflict in found if conflict)

    def _adapter_conflict(self, pool: Pool, adapter: str) -> AdapterConflict | None:
        bare, qualified = (self.serving(name) for name in (adapter, f"{pool.fleet[0]}/{adapter}"))
        means = [one is not None and one.is_adapter and pool.key in one.pools for one in (bare, qualified)]
        return None if means[0] else AdapterConflict(adapter, bare.pools[0] if bare else "", nameless=not means[1])

    def serving(self, model: str) -> ServedModel | None:
        """The fleet of a model name, or of "namespace/name"; None where no pool serves it."""
        self._refresh()
        if model not in self._served:
            pools = self.fleet(model)
            if not pools:
                return None
            self._served[model] = self._serving(model, pools)
        return self._served[model]

    def aliased(self, name: str) -> tuple[AliasedModel, ...]:
        """The models that a name means as an alias, which no model or adapter has; () where no pool here serves one."""
        found = self._aliases.of(name)
        if not found or self.serving(name) or self._elsewhere.of(name):
            return ()
        served = ((self.serving(self._names.shown(share.namespace, share.model)), share.weight) for share in found)
        return tuple(AliasedModel(model, weight) for model, weight in served if model is not None)

    def aliases(self, *, patterns: bool = False) -> list[str]:
        """Every alias that means a model and is no model's own name, with the ``patterns`` or without; sorted."""
        return [name for name in self._aliases.shown(patterns=patterns) if self.aliased(name)]

    def alias_conflicts(self, pool: Pool) -> tuple[AliasConflict, ...]:
        """The aliases of a pool that do not mean its model."""
        model = pool.declared.spec.model
        found = (self._alias_conflict(pool, alias) for alias in model.aliases if model.alias_weight)
        return tuple(conflict for conflict in found if conflict)

    def _alias_conflict(self, pool: Pool, alias: str) -> AliasConflict | None:
        bare, qualified = (self._alias_means(name, pool) for name in (alias, f"{pool.fleet[0]}/{alias}"))
        if bare:
            return None
        model = self.serving(alias)
        return AliasConflict(alias, model.pools[0] if model else self._aliases.owner(alias), nameless=not qualified)

    def _alias_means(self, name: str, pool: Pool) -> bool:
        return self.serving(name) is None and self._aliases.means(name, pool.declared)

    def elsewhere(self, model: str) -> ModelElsewhere | None:
        """The model of that name, or alias, where another control plane serves it, and none of the pools here."""
        if self.serving(model) is not None:
            return None
        if (found := self._elsewhere.of(model)) is not None:
            return found
        shares = () if self.aliased(model) else self._aliases.of(model)
        named = (self._elsewhere.of(self._names.shown(share.namespace, share.model)) for share in shares)
        return next((one for one in named if one is not None), None)

    def models_elsewhere(self) -> list[ServedModel]:
        """Models and adapters that other control planes serve, and no pool here, as ``models``."""
        return [one.model for one in self._elsewhere.all() if self.serving(one.model.name) is None]

    def keyed(self, model: str) -> list[Pool]:
        """The pools of a model, whose block keys follow from its contract; none of an adapter, as workers load it."""
        served = self.serving(model)
        return [] if served is None or served.is_adapter else self.fleet(model)

    def adapter(self, model: str) -> str:
        """The adapter that a model name means; "" where it means none."""
        served = self.serving(model)
        return served.upstream if served and served.is_adapter else ""

    def _serving(self, model: str, pools: Sequence[Pool]) -> ServedModel:
        adapter = None if self._names.resolve(model) else self._adapter_names.resolve(model)
        declared = [pool.declared for pool in pools]
        return served_model(model, declared, adapter[1] if adapter else "", self._created.get)

    # Pools.

    def _update_pool(self, view: PoolView) -> Pool | None:
        """Apply one pool; the pool where its policy is new."""
        pool = self.pools.get(view.key)
        if pool is None or pool.declared.metadata.uid != view.pool.metadata.uid:
            window = HitWindow(DEFAULT_WINDOW_SECONDS)
            pool = self.pools[view.key] = Pool(view.pool, _policy(view), window, used_at=self._clock())
        fresh = False
        if view.admitted or pool.policy is None:  # else what was in force stays
            fresh = _policy(view) != pool.policy
            pool.declared, pool.policy = view.pool, _policy(view)
        objective = pool.declared.spec.hit.objective
        seconds = float(objective.window_seconds) if objective else DEFAULT_WINDOW_SECONDS
        pool.window.seconds = pool.served.seconds = seconds
        self._list(pool, view.workers)
        pool.settle_contract()
        return pool if fresh else None

    def _list(self, pool: Pool, endpoints: Iterable[WorkerEndpoint]) -> None:
        listed = {endpoint.name: endpoint for endpoint in endpoints}
        for worker in list(pool.workers.values()):
            worker.list_at(listed.get(worker.name), self._clock())
            if worker.endpoint is None and worker.hello is None:
                self.remove(worker)
        for endpoint in listed.values():
            if worker_id(pool.key, endpoint.name) not in pool.workers:
                row = self.plane.row()
                worker = Worker(pool.key, endpoint.name, row=row, endpoint=endpoint, worth=pool.shown)
                pool.workers[worker.id] = worker


def _nobody(_worker: Worker, _prefix: bytes, _seconds: float) -> None:
    """What is paid concerns this replica alone."""


def _last_key(tokens: int, prompt: Prompt) -> bytes:
    """The key of the last of the blocks that so many of a prompt's tokens are."""
    end = tokens // prompt.block_size * KEY_BYTES if prompt.block_size else 0
    return prompt.keys[end - KEY_BYTES : end] if end else b""


def _policy(view: PoolView) -> Policy | None:
    return engine_policy(view.pool) if view.admitted else None
