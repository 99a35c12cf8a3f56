"""Builds what remembers the last hour, the simulator of its requests, and what caches of other sizes would serve."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter, Gauge

from cachefleet_controlplane.admin.history.history_routes import HistorySource, Prefixes
from cachefleet_controlplane.cache_contracts.contract_metrics import ContractCollector
from cachefleet_controlplane.cache_contracts.contract_records import ContractRecords
from cachefleet_controlplane.capacity.advice_records import AdviceRecords
from cachefleet_controlplane.capacity.capacity_answers import CapacityAnswers
from cachefleet_controlplane.capacity.capacity_metrics import AdviceCollector, CapacityCollector
from cachefleet_controlplane.capacity.capacity_report import CapacityReports
from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.account.prompt_losses import PromptLosses
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.history.sampler import Sampler
from cachefleet_controlplane.judgements.judgement_log import JudgementLog
from cachefleet_controlplane.judgements.judgement_repository import HOUR_SECONDS, SqlJudgements
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.other_sizes.confirmations import Confirmations
from cachefleet_controlplane.other_sizes.fleet_outlines import FleetOutlines
from cachefleet_controlplane.prompt_causes.prompt_shapes import PromptShapes
from cachefleet_controlplane.simulation.simulator import Simulator
from cachefleet_controlplane.store.content.store_thread import StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.settings import Settings


@dataclass(frozen=True, slots=True)
class HistoryParts:
    """The last hour by pool, its requests as recorded, why their prompts missed, their simulator, and hit curves."""

    cache: CacheHistory
    recorded: RecordedRequests
    prompts: PromptLosses
    simulator: Simulator
    reuses: PoolReuses
    capacities: Confirmations
    advice: AdviceRecords
    outlines: FleetOutlines

    def sampler(self, fleet: Fleet, waiting: Callable[[tuple[str, str]], int]) -> Sampler:
        """What fills ``cache``; run it as a task."""
        return Sampler(self.cache, fleet.view, fleet.models, waiting)

    def shown(self, prefixes: Prefixes) -> HistorySource:
        """What the admin API shows, with the hot prefixes."""
        return HistorySource(self.cache, prefixes, self.prompts.ledger)


@dataclass(frozen=True, slots=True)
class JudgementParts:
    """What keeps judgements; run both as tasks, of which the thread's must end last."""

    thread: StoreThread[SqlJudgements]
    log: JudgementLog


def history_parts(settings: Settings, bounds: ReplicaBounds, fleet: Fleet, metrics: Metrics) -> HistoryParts:
    """Build all within the settings' memory; the curves are shown by ``metrics``."""
    recorded, reuses = RecordedRequests(settings.recorded_request_bytes), PoolReuses()
    simulator = Simulator(fleet, recorded, memory=settings.simulation_memory_bytes)
    kept = bounds.capacity_seconds
    capacity = CapacityReports(reuses, fleet.view, fleet.models, clock=fleet.losses.now, kept_seconds=kept)
    metrics.collect_from(CapacityCollector(capacity.all))
    prompts = _prompt_losses(settings, metrics)
    advice = AdviceRecords(capacity, bounds=bounds.settling)
    metrics.collect_from(AdviceCollector(advice))
    answers = CapacityAnswers(capacity, fleet.view, advice)
    capacities = Confirmations(answers, simulator, clock=fleet.losses.now, wall_clock=time.time)
    outlines = FleetOutlines(fleet, recorded, capacity, clock=fleet.losses.now)
    return HistoryParts(CacheHistory(), recorded, prompts, simulator, reuses, capacities, advice, outlines)


def contract_records(fleet: Fleet, metrics: Metrics) -> ContractRecords:
    """Build what judges tenants' cache contracts; run it as a task."""
    records = ContractRecords(fleet.view, fleet.models, settle=metrics.registry.settle)
    metrics.collect_from(ContractCollector(records))
    return records


def judgement_parts(
    database: Database, contracts: ContractRecords, advice: AdviceRecords, metrics: Metrics, *, store_seconds: float
) -> JudgementParts:
    """Build what keeps judgements of contracts and of advice in the store."""
    failures = Counter(
        "cachefleet_judgement_store_failures",
        "Calls of the store of judgements that failed",
        ["operation"],
        registry=metrics.registry,
    )
    thread = StoreThread(
        SqlJudgements(database),
        "judgements",
        failed=lambda operation: failures.labels(operation).inc(),
        prune=lambda store: store.prune(now=time.time()),
        bounds=StoreThreadBounds(answer_seconds=store_seconds, prune_seconds=HOUR_SECONDS),
    )
    return JudgementParts(thread, JudgementLog(thread, (contracts.judged, advice.judged), advice))


def _prompt_losses(settings: Settings, metrics: Metrics) -> PromptLosses:
    shapes = PromptShapes(settings.prompt_shape_bytes)
    size = Gauge("cachefleet_prompt_shape_bytes", "Memory of prompts' parts as digests", registry=metrics.registry)
    size.set_function(lambda: shapes.size)
    return PromptLosses(shapes)
