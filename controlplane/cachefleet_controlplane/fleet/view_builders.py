"""Makes what is reported of pools, workers and index from live state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cachefleet_controlplane.fleet.agent_connections import AgentConnections
from cachefleet_controlplane.fleet.demand import Demand
from cachefleet_controlplane.index.block_index import IndexStats
from cachefleet_controlplane.report_streams.report_stream import StreamState
from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.workers.hit_window import WindowTokens, hit_ratio
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.views import IndexStatus
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.budget import budget_mib
from cachefleet_core.fleet_status.pool_facts import (
    AdapterConflict,
    AliasConflict,
    ContractFacts,
    HitRatio,
    PoolFacts,
    WorkerCounts,
)
from cachefleet_core.fleet_status.worker_facts import Load, WorkerFacts
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_fields import MAX_TEXT
from cachefleet_core.report_frames import Capability, Hello, State


def pool_facts(
    pool: Pool,
    now: float,
    *,
    wall: float,
    adapters: tuple[AdapterConflict, ...] = (),
    aliases: tuple[AliasConflict, ...] = (),
    demand: Demand,
) -> PoolFacts:
    """A pool's facts; ``wall`` is ``now`` in Unix seconds, ``adapters`` and ``aliases`` are those with a conflict,
    ``demand`` that which its fleet does not meet.
    """
    declared, workers = pool.declared, list(pool.workers.values())
    unserved = demand.unserved
    pool.note_use(now, unserved=unserved)
    return PoolFacts(
        key=pool.key,
        namespace=declared.metadata.namespace,
        name=declared.metadata.name,
        model=declared.spec.model.name,
        generation=declared.metadata.generation,
        contract=contract_facts(pool.contract) if pool.contract else None,
        hit_ratio=_hit_ratio(pool, now, wall),
        workers=_counts(workers, now),
        replicas=declared.spec.replicas,
        admitted=pool.policy is not None,
        budget_mib=budget_mib(declared.spec),
        adapter_conflicts=adapters,
        alias_conflicts=aliases,
        unserved_requests=unserved,
        queued_requests=demand.queued,
        queued_blocks=demand.queued_blocks,
        idle_seconds=max(0.0, now - pool.used_at),
    )


def contract_facts(contract: IndexContract) -> ContractFacts:
    """An index contract with its fingerprint."""
    return ContractFacts(fingerprint=contract.fingerprint(), **msgspec.structs.asdict(contract))


def _counts(workers: Sequence[Worker], now: float) -> WorkerCounts:
    return WorkerCounts(
        total=sum(worker.endpoint is not None for worker in workers),
        ready=sum(worker.serves(now) for worker in workers),
        fresh=sum(_fresh(worker, now) for worker in workers),
        excluded=sum(bool(worker.differences) for worker in workers),
    )


def index_status(stats: IndexStats, agents: AgentConnections) -> IndexStatus:
    """The view of the index, with the frames that were not applied."""
    return IndexStatus(
        keys=stats.keys,
        held=sum(stats.held.values()),
        bytes=stats.bytes,
        refused_frames=agents.refused_frames,
        shed_frames=agents.shed_frames,
        excess_claims=agents.excess_claims,
    )


def _hit_ratio(pool: Pool, now: float, wall: float) -> HitRatio:
    (queried, hit), (answered, served) = pool.window.sums(now), pool.served.sums(now)
    tokens = WindowTokens(queried=queried, hit=hit, answered=answered, served=served)
    return hit_ratio(tokens, seconds=pool.window.seconds, objective=pool.declared.spec.hit.objective, wall=wall)


@dataclass(frozen=True, slots=True)
class ReadyWorker:
    """A worker that its pool's source lists as ready."""

    full_name: str
    reported: bool
    """Its agent is connected, and has reported its blocks and load."""
    vouched: bool
    """It may be sent requests."""


def ready_workers(workers: Iterable[Worker], agents: AgentConnections) -> Iterator[ReadyWorker]:
    """Of these workers, those that are listed as ready, one per rank."""
    for worker in workers:
        if worker.listed_ready:
            live = worker.stream.stream_state is StreamState.LIVE and worker.load is not None
            yield ReadyWorker(worker.full_name, live and agents.connected(worker), worker.vouched)


def worker_facts(
    worker: Worker, now: float, *, held_blocks: int, cache_value: float, rate: float | None, agents: AgentConnections
) -> WorkerFacts:
    """One rank's facts; what it has not announced or reported is 0, "" or None. ``rate``: its ``prefill_rate``."""
    report, endpoint = worker.load, worker.endpoint
    return WorkerFacts(
        id=worker.id,
        name=worker.name,
        pool=worker.pool,
        rank=worker.rank,
        url=endpoint.url if endpoint else "",
        agent=(endpoint.agent if endpoint else "") or (worker.hello.agent if worker.hello else ""),
        listed=endpoint is not None,
        ready=worker.listed_ready,
        vouched=worker.vouched,
        suspended=worker.suspended(now),
        connected=agents.connected(worker),
        stream=worker.stream.stream_state.value,
        epoch=worker.stream.epoch,
        sequence=worker.stream.sequence,
        report_age_seconds=now - report.at if report else None,
        stale=worker.stream.stale(now),
        indexed=not worker.unindexed,
        cache_value=cache_value,
        trust=worker.row.trust / WHOLE,
        blind=worker.unindexed_hits.blind,
        excluded=bool(worker.differences),
        differences=worker.differences,
        backing_off=worker.row.backoff_until > now,
        key_refused=worker.row.key_refused,
        inflight_requests=worker.row.open,
        inflight_tokens=worker.row.tokens(now),
        adapters=worker.adapters.report,
        **_announced(worker.hello, held_blocks),
        **_waiting_work(worker, now, rate),
        **(report_facts(report.state) if report else {}),
    )


def _announced(hello: Hello | None, held_blocks: int) -> dict[str, Any]:
    """The fields of a worker's facts that come from its Hello, and how much it holds by those."""
    block_bytes = hello.block_bytes if hello else 0
    return {
        "held_blocks": held_blocks,
        "held_bytes": held_blocks * block_bytes if block_bytes else None,
        "block_bytes": block_bytes,
        "configuration": hello.configuration if hello else (),
        "engine_version": hello.engine_version if hello else "",
        "capabilities": (*hello.capabilities, *_index(hello)) if hello else (),
        "not_indexed": hello.not_indexed if hello else "",
    }


def _waiting_work(worker: Worker, now: float, rate: float | None) -> dict[str, Any]:
    """The fields of a worker's facts on others' requests and work that waits; ``rate`` as of ``worker_facts``."""
    (elsewhere, tokens), load = worker.row.elsewhere(now), worker.known_load(now)
    reported = (load.state.waiting_tokens or 0) if load else 0
    waiting = max(worker.row.tokens(now) + tokens, reported)
    rate = (load.state.prefill_tokens_per_second if load else None) or rate
    seconds = waiting / rate if rate else None
    return {"elsewhere_requests": elsewhere, "waiting_tokens": waiting, "backlog_seconds": seconds}


def report_facts(state: State) -> dict[str, Any]:
    """The fields of a worker's facts that come from its last report."""
    return {
        "phase": state.phase.value,
        "phase_reason": state.reason or None,
        "load": Load(**{name: getattr(state, name) for name in Load.__struct_fields__}),
        "policy_generation": state.generation,
        "promised_blocks": sum(one.idle for one in state.held_by_salt.values()),
        "warmth": state.warmth,
    }


def _index(hello: Hello) -> tuple[Capability, ...]:
    """How its blocks are indexed, where that is not as for full attention alone."""
    if hello.not_indexed:
        return (Capability(feature="index", mode="off", reason=f"not indexed: {hello.not_indexed}"[:MAX_TEXT]),)
    if not hello.rule.windows:
        return ()
    windows = ", ".join(map(str, hello.rule.windows))
    before = "all blocks of a prefix and " if hello.rule.full else ""
    return (Capability(feature="index", mode="windows", reason=f"a hit needs {before}the last {windows} blocks"),)


def _fresh(worker: Worker, now: float) -> bool:
    return worker.stream.stream_state is StreamState.LIVE and not worker.stream.stale(now) and not worker.unindexed
