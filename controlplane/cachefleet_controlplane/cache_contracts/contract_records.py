"""All cache contracts of a replica: takes answers and what workers hold, and ends minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from cachefleet_controlplane.cache_contracts.contract_minutes import ContractMinutes
from cachefleet_controlplane.cache_contracts.contract_report import ContractState, contract_state
from cachefleet_controlplane.history.cache_history import Answered
from cachefleet_controlplane.judgements.judged_minutes import JudgedMinutes
from cachefleet_controlplane.judgements.judgement_repository import Judged
from cachefleet_controlplane.workers.views import FleetView, HeldCache, ServedModel
from cachefleet_core.pool.policy import CacheContract

TICK_SECONDS: Final = 10.0
MINUTE_SECONDS: Final = 60

KIND: Final = "contract"
"""In the store."""
Contract = tuple[str, str]
"""Pool, as "namespace/name", and tenant."""


class ContractRecords:
    """Of declared contracts alone; ``settle`` passes on answers that wait to be counted, ``clock`` is Unix time."""

    def __init__(
        self,
        view: Callable[[], FleetView],
        models: Callable[[], Sequence[ServedModel]],
        *,
        settle: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._view, self._models = view, models
        self._settle = settle
        self._clock, self._sleep = clock, sleep
        self._contracts: dict[Contract, CacheContract] = {}
        self._minutes: dict[Contract, ContractMinutes] = {}
        self._told: dict[tuple[Contract, str], int] = {}
        """What workers last said was evicted, by contract and life of the worker."""
        self._idle: dict[Contract, int] = {}

    async def run(self) -> None:
        """Look at the fleet now and then until cancelled."""
        while True:
            await self._sleep(TICK_SECONDS)
            self.tick()

    def answered(self, pool: str, tenant: str, answered: Answered) -> None:
        """Count a tenant's answers whose engines tell what came from cache; of others than contracts' nothing."""
        if self._minutes and (minutes := self._minutes.get((pool, tenant))) is not None:
            minutes.answered(answered)

    def tick(self) -> None:
        """Count what workers evicted since the last time, and end the minute where it is over."""
        declared = [pool for model in self._models() for pool in model.declared]
        named = [((pool.key, one.tenant), one) for pool in declared for one in pool.spec.tenancy.contracts]
        self._keep(dict(named))
        if not named:
            return
        self._settle()
        held: dict[Contract, list[HeldCache]] = {name: [] for name in self._contracts}
        for one in self._view().held:
            if (one.pool, one.tenant) in held:
                held[one.pool, one.tenant].append(one)
        self._told = {key: told for name, workers in held.items() for key, told in self._evictions(name, workers)}
        self._idle = {name: sum(one.idle or 0 for one in workers) for name, workers in held.items()}
        self._end_minutes(held)

    def states(self) -> list[ContractState]:
        """All contracts, by pool and tenant."""
        return [
            contract_state(name[0], contract, self._minutes[name], self._idle.get(name, 0))
            for name, contract in sorted(self._contracts.items())
        ]

    def totals(self) -> Iterable[tuple[Contract, ContractMinutes]]:
        """The minutes of all, by pool and tenant."""
        return self._minutes.items()

    def judged(self) -> Iterable[tuple[Judged, JudgedMinutes]]:
        """The minutes of all, to be kept in the store."""
        return ((Judged(KIND, *name), minutes.judged) for name, minutes in self._minutes.items())

    def _keep(self, contracts: dict[Contract, CacheContract]) -> None:
        minute = self._minute()
        self._contracts = contracts
        self._minutes = {name: self._minutes.get(name) or ContractMinutes(minute) for name in contracts}

    def _evictions(self, name: Contract, workers: Sequence[HeldCache]) -> Iterable[tuple[tuple[Contract, str], int]]:
        """Count what is new; of a worker that is seen for the first time nothing."""
        for one in workers:
            key = name, one.worker
            if one.idle is not None:
                self._minutes[name].evict(max(0, one.evicted - self._told.get(key, one.evicted)))
                yield key, one.evicted

    def _end_minutes(self, held: dict[Contract, list[HeldCache]]) -> None:
        minute = self._minute()
        for name, minutes in self._minutes.items():
            if minute < minutes.minute:
                minutes.set_back(minute)
            elif minute > minutes.minute:
                workers = held[name]
                enforced = all(one.idle is not None for one in workers) if workers else None
                minutes.end(minute, self._contracts[name], enforced=enforced)

    def _minute(self) -> int:
        return int(self._clock() // MINUTE_SECONDS)
