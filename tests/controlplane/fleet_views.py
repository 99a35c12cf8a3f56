"""Frozen pictures of a small fleet."""

from typing import Any

from cachefleet_controlplane.cache_contracts.contract_minutes import ContractMinutes
from cachefleet_controlplane.cache_contracts.contract_report import ContractState, contract_state
from cachefleet_controlplane.fleet.view_builders import contract_facts, report_facts
from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.workers.hit_window import WindowTokens, hit_ratio
from cachefleet_controlplane.workers.views import OTHERS, FleetView, IdleCache, IndexStatus
from cachefleet_core.fleet_status.pool_facts import HitRatio, PoolFacts, WorkerCounts
from cachefleet_core.fleet_status.worker_facts import WorkerFacts
from cachefleet_core.index_contract import Difference, IndexContract
from cachefleet_core.pool.policy import CacheContract, HitObjective
from cachefleet_core.report_frames import Capability, Phase, State

CONTRACT = IndexContract(weights="tiny", tokenizer="sha256:aa", block_size=16)
REPORT = State(
    sequence=7,
    digest=1,
    held=40,
    phase=Phase.READY,
    running=2,
    waiting=1,
    waiting_tokens=100,
    blocks_total=64,
    blocks_free=20,
    blocks_idle=12,
    preemptions=3,
    prefill_tokens_per_second=1500.0,
    prefix_queries=1000,
    prefix_hits=700,
    generation=2,
)


TENANTS = (
    IdleCache("default/demo", "acme", 0.25, 30, 2),
    IdleCache("default/demo", OTHERS, 1.0, 10, 1),
    IdleCache("default/other", "acme", 1.0, 5, 1),
)


def contracts() -> list[ContractState]:
    """One that its last minute broke, and one that nobody has judged."""
    kept, fresh = ContractMinutes(0), ContractMinutes(0)
    promised = CacheContract(tenant="acme", share=0.3, retention_seconds=60)
    kept.end(1, promised, enforced=True)
    kept.evict(8)
    kept.end(2, promised, enforced=True)
    other = CacheContract(tenant="umbrella", share=1.0)
    return [contract_state("default/demo", promised, kept, 30), contract_state("default/other", other, fresh, 0)]


INDEX = IndexStatus(keys=40, held=50, bytes=4000, refused_frames=3, shed_frames=2, excess_claims=1)


def measured(objective: float | None = 0.6, min_tokens: int = 0, **tokens: int) -> HitRatio:
    """A pool's hit ratio by the tokens of its window."""
    asked = HitObjective(ratio=objective, min_tokens=min_tokens) if objective else None
    return hit_ratio(WindowTokens(**tokens), seconds=600, objective=asked, wall=1_800_000_000.0)


def worker_status(name: str, *, report: State | None = REPORT, **changes: Any) -> WorkerFacts:
    fields: dict[str, Any] = {
        "id": WorkerId(f"default/demo/{name}#0"),
        "name": name,
        "pool": "default/demo",
        "rank": 0,
        "url": "http://127.0.0.1:9001",
        "agent": "http://127.0.0.1:9002",
        "listed": True,
        "ready": True,
        "vouched": True,
        "connected": True,
        "stream": "live",
        "epoch": "e1",
        "sequence": 7,
        "report_age_seconds": 0.5,
        "stale": False,
        "held_blocks": 40,
        "indexed": True,
        "cache_value": 12.5,
        "trust": 1.0,
        "excluded": False,
        "differences": (),
        "backing_off": False,
        "key_refused": False,
        "inflight_requests": 2,
        "inflight_tokens": 300,
        "block_bytes": 4096,
        "engine_version": "0.32.0",
        "capabilities": (Capability(feature="gate", mode="off", reason="no plugin"),),
    }
    facts: dict[str, Any] = fields | (report_facts(report) if report else {}) | changes
    facts.setdefault("held_bytes", facts["held_blocks"] * facts["block_bytes"] or None)
    return WorkerFacts(**facts)


def unknown_worker(name: str, **changes: Any) -> WorkerFacts:
    """A worker nobody has reported for."""
    silent: dict[str, Any] = {
        "connected": False,
        "stream": "unknown",
        "epoch": "",
        "report": None,
        "report_age_seconds": None,
        "stale": True,
        "held_blocks": 0,
        "block_bytes": 0,
    }
    return worker_status(name, **silent | changes)


def fleet_view(*workers: WorkerFacts, queried: int = 1000, hits: int = 700) -> FleetView:
    pool = PoolFacts(
        key="default/demo",
        namespace="default",
        name="demo",
        model="tiny",
        generation=2,
        contract=contract_facts(CONTRACT),
        hit_ratio=measured(queried=queried, hit=hits),
        workers=counts(*workers),
    )
    return FleetView(
        policy="cacheAware", pools=(pool,), workers=workers, inflight_requests=2, index=INDEX, tenants=TENANTS
    )


def counts(*workers: WorkerFacts) -> WorkerCounts:
    return WorkerCounts(
        total=len(workers),
        ready=sum(worker.ready for worker in workers),
        fresh=sum(not worker.stale for worker in workers),
        excluded=sum(worker.excluded for worker in workers),
    )


DIFFERENT = (Difference("weights", "tiny", "other"),)
