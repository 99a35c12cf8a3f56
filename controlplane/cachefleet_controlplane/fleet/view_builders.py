"""Builds the frozen views of pools, workers and index from live state."""

from __future__ import annotations

from cachefleet_controlplane.fleet.agent_connections import AgentConnections
from cachefleet_controlplane.index.protocol import IndexStats
from cachefleet_controlplane.report_streams.report_stream import StreamState
from cachefleet_controlplane.routing.hit_trust import WHOLE
from cachefleet_controlplane.workers.pool import Pool
from cachefleet_controlplane.workers.views import AdapterConflict, HitRatio, IndexStatus, PoolStatus, WorkerStatus
from cachefleet_controlplane.workers.worker import Worker
from cachefleet_core.budget import budget_mib
from cachefleet_core.report_frames import Capability, Hello
from cachefleet_core.warmth import Warmth

_NOT_WARMED = Warmth()


def pool_status(pool: Pool, now: float, *, wall: float, conflicts: tuple[AdapterConflict, ...] = ()) -> PoolStatus:
    """The view of a pool; ``wall`` is ``now`` in Unix seconds, ``conflicts`` those of its adapters."""
    workers = list(pool.workers.values())
    return PoolStatus(
        key=pool.key,
        model=pool.declared.spec.model.name,
        namespace=pool.declared.metadata.namespace,
        generation=pool.declared.metadata.generation,
        contract=pool.contract,
        hit_ratio=hit_ratio(pool, now, wall=wall),
        workers=sum(worker.endpoint is not None for worker in workers),
        ready=sum(worker.serves(now) for worker in workers),
        fresh=sum(_fresh(worker, now) for worker in workers),
        excluded=sum(bool(worker.differences) for worker in workers),
        replicas=pool.declared.spec.replicas,
        admitted=pool.policy is not None,
        budget_mib=budget_mib(pool.declared.spec),
        adapter_conflicts=conflicts,
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


def hit_ratio(pool: Pool, now: float, *, wall: float) -> HitRatio:
    """The hit ratio of a pool's window that ends at ``now``; ``wall`` is that in Unix seconds."""
    queried, hit = pool.window.sums(now)
    told, served = pool.served.sums(now)
    objective = pool.declared.spec.hit.objective
    return HitRatio(
        window_seconds=pool.window.seconds,
        objective=objective.ratio if objective else None,
        queried_tokens=queried,
        hit_tokens=hit,
        answered_tokens=told,
        served_tokens=served,
        sampled_at=wall,
        min_tokens=objective.min_tokens if objective else 0,
    )


def worker_status(
    worker: Worker, now: float, *, held_blocks: int, cache_value: float, agents: AgentConnections
) -> WorkerStatus:
    """The view of one rank; what it has not announced or reported is 0, "" or None."""
    load, hello, endpoint = worker.load, worker.hello, worker.endpoint
    return WorkerStatus(
        id=worker.id,
        name=worker.name,
        pool=worker.pool,
        rank=worker.rank,
        url=endpoint.url if endpoint else "",
        agent=(endpoint.agent if endpoint else "") or (hello.agent if hello else ""),
        listed=endpoint is not None,
        ready=worker.listed_ready,
        vouched=worker.vouched,
        suspended=worker.suspended(now),
        connected=agents.connected(worker),
        stream=worker.stream.stream_state.value,
        epoch=worker.stream.epoch,
        sequence=worker.stream.sequence,
        report=load.state if load else None,
        report_age=now - load.at if load else None,
        stale=worker.stream.stale(now),
        held_blocks=held_blocks,
        indexed=not worker.unindexed,
        cache_value=cache_value,
        trust=worker.trust / WHOLE,
        blind=worker.unindexed_hits.blind,
        excluded=bool(worker.differences),
        differences=worker.differences,
        configuration=hello.configuration if hello else (),
        backing_off=worker.backoff_until > now,
        key_refused=worker.key_refused,
        inflight_requests=len(worker.inflight_requests.open),
        inflight_tokens=worker.inflight_requests.tokens(now),
        policy_generation=load.state.generation if load else 0,
        block_bytes=hello.block_bytes if hello else 0,
        engine_version=hello.engine_version if hello else "",
        capabilities=(*hello.capabilities, *_index(hello)) if hello else (),
        not_indexed=hello.not_indexed if hello else "",
        warmth=load.state.warmth if load else _NOT_WARMED,
        adapters=worker.adapters.report,
    )


def _index(hello: Hello) -> tuple[Capability, ...]:
    """How its blocks are indexed, where that is not as for full attention alone."""
    if hello.not_indexed:
        return (Capability(feature="index", mode="off", reason=f"not indexed: {hello.not_indexed}"),)
    if not hello.rule.windows:
        return ()
    windows = ", ".join(map(str, hello.rule.windows))
    before = "all blocks of a prefix and " if hello.rule.full else ""
    return (Capability(feature="index", mode="windows", reason=f"a hit needs {before}the last {windows} blocks"),)


def _fresh(worker: Worker, now: float) -> bool:
    return worker.stream.stream_state is StreamState.LIVE and not worker.stream.stale(now) and not worker.unindexed
