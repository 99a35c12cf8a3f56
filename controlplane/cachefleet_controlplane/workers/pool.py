"""One declared pool with its workers, its policy, and what is learnt of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

import msgspec

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.pools.index_contracts import contract_differences, in_force
from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from cachefleet_controlplane.workers.hit_window import DEFAULT_WINDOW_SECONDS, HitWindow
from cachefleet_controlplane.workers.load import is_spare
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_controlplane.workers.worth.pool_worth import PoolWorth
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.pool.worker_spec import Role
from cachefleet_core.report_fields import SaltShare
from cachefleet_core.report_frames import Policy, Warm


@dataclass(slots=True)
class Pool:
    """One declared pool with its workers and the contract in force."""

    declared: PrefixCachePool
    """With the spec in force."""
    policy: Policy | None
    """What its workers are told; None while none is known to be admitted."""
    window: HitWindow
    """By its engines' counters."""
    contract: IndexContract | None = None
    tenant_shares: tuple[SaltShare, ...] | None = None
    """Shares of the idle cache of some tenants; None where this control plane has no salt key."""
    warm: Warm | None = None
    """Its standing Warm frame; None where this control plane has no salt key, or no policy for it."""
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    served: HitWindow = field(default_factory=lambda: HitWindow(DEFAULT_WINDOW_SECONDS))
    """By the answers that this replica has passed on."""
    worth: PoolWorth = field(default_factory=PoolWorth)
    shown: Worth = UNLEARNT
    """Of ``worth`` what decisions were last told."""
    used_at: float = 0.0
    """When a request of this replica was last known to be with a worker of it, or to lack one, in monotonic seconds."""
    room: int = 0
    """Blocks of all its workers that report, as of when decisions were last told of its worth."""

    @property
    def key(self) -> str:
        """As "namespace/name"."""
        return self.declared.key

    @property
    def fleet(self) -> tuple[str, str]:
        """Namespace and model name: pools that share both form a fleet."""
        return self.declared.metadata.namespace, self.declared.spec.model.name

    @property
    def ready(self) -> bool:
        """Whether a worker of it is ready; one asleep is."""
        return any(worker.ready for worker in self.workers.values())

    def has_spare_room(self, now: float, free_percent: int) -> bool:
        """Whether a worker of it may answer, has nothing waiting, and so much of its KV cache free, as it said last."""
        answers = self.declared.spec.role is not Role.PREFILL
        loads = (worker.known_load(now) for worker in self.workers.values() if worker.serves(now))
        return answers and any(is_spare(load, free_percent) for load in loads)

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens that a worker computes a second: the median of those that have measured it."""
        loads = (worker.load for worker in self.workers.values() if worker.load)
        rates = [rate for load in loads if (rate := load.state.prefill_tokens_per_second)]
        return median(rates) if rates else None

    @property
    def policy_with_shares(self) -> Policy | None:
        """The policy that workers are sent, with tenants' shares."""
        if self.policy is None or self.tenant_shares is None:
            return self.policy
        return msgspec.structs.replace(self.policy, tenant_shares=self.tenant_shares)

    def looked_up(self, queries: int, hits: int, now: float) -> None:
        """The engine of one of its workers has looked up so many tokens more, and found so many."""
        self.window.add(queries, hits, now)
        self.worth.reported(queries, hits, now)

    def counted_before(self, tokens: int, cached: int, now: float) -> None:
        """One of its engines will look up so many tokens, and find about so many, for a request that was counted when
        it began: they are taken off what is reported.
        """
        self.window.add(-tokens, -cached, now)
        self.worth.reported(-tokens, -cached, now)

    def answered(self, prompt: int, served: int, now: float) -> None:
        """Answers of one of its workers tell that of so many prompt tokens so many came from cache, whatever cache."""
        self.served.add(prompt, served, now)

    def note_use(self, now: float, *, unserved: int) -> None:
        """It is in use now, if a worker of it has a request, or requests are ``unserved`` for want of a worker."""
        if unserved or any(worker.row.open for worker in self.workers.values()):
            self.used_at = now

    def weigh(self, now: float) -> None:
        """Have decisions see what has been learnt of the pool, now and then."""
        if self.worth.due(now):
            loads = [worker.load for worker in self.workers.values() if worker.load]
            self.room = sum(load.state.blocks_total for load in loads)
            self.shown = self.worth.tell(len(loads), now)
            for worker in self.workers.values():
                worker.weigh(self.shown)

    def has(self, adapter: str) -> bool:
        """Whether its workers load an adapter of this name."""
        return any(one.name == adapter for one in self.declared.spec.model.adapters)

    def settle_contract(self) -> None:
        """Choose the contract in force among those of listed workers, and set each worker's differences from it."""
        announced = [worker.hello.contract for worker in self.workers.values() if worker.hello and worker.endpoint]
        self.contract = in_force(self.declared.spec, self.contract, announced)
        for worker in self.workers.values():
            if worker.hello:
                worker.differences = contract_differences(self.declared.spec, self.contract, worker.hello.contract)
