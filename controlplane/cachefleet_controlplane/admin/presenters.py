"""Converts live state to the schemas of the admin API. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from cachefleet_controlplane.admin import schemas
from cachefleet_controlplane.workers.views import FleetView, PoolStatus, WorkerStatus
from cachefleet_core.index_contract import IndexContract


def pool(status: PoolStatus) -> schemas.Pool:
    """A pool without its workers."""
    return schemas.Pool(
        key=status.key,
        namespace=status.namespace,
        name=status.key.partition("/")[2],
        model=status.model,
        generation=status.generation,
        contract=None if status.contract is None else contract(status.contract),
        hit_ratio=hit_ratio(status),
        workers=schemas.WorkerCounts(
            total=status.workers, ready=status.ready, fresh=status.fresh, excluded=status.excluded
        ),
        budget_mib=status.budget_mib,
        adapter_conflicts=tuple(map(schemas.AdapterConflict.model_validate, status.adapter_conflicts)),
    )


def pool_detail(status: PoolStatus, view: FleetView) -> schemas.PoolDetail:
    """A pool with its workers, which are those of ``view`` with its key."""
    members = tuple(worker(member) for member in view.workers if member.pool == status.key)
    return schemas.PoolDetail(**dict(pool(status)), members=members)


def contract(found: IndexContract) -> schemas.Contract:
    """An index contract with its fingerprint."""
    return schemas.Contract(
        fingerprint=found.fingerprint(),
        weights=found.weights,
        revision=found.revision,
        tokenizer=found.tokenizer,
        block_size=found.block_size,
        key_version=found.key_version,
        lookahead=found.lookahead,
    )


def hit_ratio(status: PoolStatus) -> schemas.HitRatio:
    """A pool's hit ratio, at most 1; value None where nothing was looked up."""
    found = status.hit_ratio
    return schemas.HitRatio(
        value=None if found.ratio is None else min(1.0, found.ratio),
        window_seconds=found.window_seconds,
        objective=found.objective,
        queried_tokens=found.queried_tokens,
        hit_tokens=found.hit_tokens,
        answered_tokens=found.answered_tokens,
        served_tokens=found.served_tokens,
        tokens=found.tokens,
        by="answers" if found.by_answers else "engines",
        counted=None if found.counted is None else min(1.0, found.counted),
        sampled=found.sampled,
        sampled_at=datetime.fromtimestamp(found.sampled_at, UTC),
    )


def worker(status: WorkerStatus) -> schemas.Worker:
    """One rank of a worker; phase and load are None before its first report."""
    same = {name: getattr(status, name) for name in schemas.Worker.model_fields if hasattr(status, name)}
    report = status.report
    return schemas.Worker.model_validate(
        same
        | {
            "phase": None if report is None else report.phase,
            "phase_reason": report.reason or None if report else None,
            "load": report,
            "report_age_seconds": status.report_age,
            "held_bytes": status.held_blocks * status.block_bytes if status.block_bytes else None,
        }
    )
