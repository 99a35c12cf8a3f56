"""What the control plane has for conversations, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.conversations.certification.canary import Canaries
from cachefleet_controlplane.gateway.conversations.certification.certificates import Certificates
from cachefleet_controlplane.gateway.conversations.certification.examiner import Examiner
from cachefleet_controlplane.gateway.conversations.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.conversations.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.conversations.encryption import Sealer
from cachefleet_controlplane.gateway.conversations.repository import SqlContinuations
from cachefleet_controlplane.gateway.conversations.response_histories import Histories
from cachefleet_controlplane.gateway.conversations.store_worker import StoreWorker, StoreWorkerBounds
from cachefleet_controlplane.gateway.conversations.turns import TurnParts, Turns
from cachefleet_controlplane.gateway.upstream.client import Upstream
from cachefleet_controlplane.gateway.upstream.credentials import Credentials
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.store.database import Database
from cachefleet_core.tenancy import FleetKey

EXAMINED_SECONDS: Final = 30.0
"""How long a worker may take for one question of a canary or an examination: nobody waits for its answer."""


@dataclass(frozen=True, slots=True)
class ContinuationParts:
    """``store_worker`` and ``examiner`` are to be run as tasks; ``canaries`` are to be closed."""

    turns: Turns
    store_worker: StoreWorker
    examiner: Examiner
    canaries: Canaries


def continuation_parts(
    settings: Settings,
    fleet_key: FleetKey,
    database: Database,
    *,
    fleet: Fleet,
    upstream: Upstream,
    credentials: Credentials,
    metrics: Metrics,
) -> ContinuationParts:
    counted = ContinuationMetrics(metrics)
    bounds = StoreWorkerBounds(
        answer_seconds=settings.continuation_store_seconds,
        conversations=settings.continuation_conversations,
        responses=settings.continuation_responses,
    )
    store_worker = StoreWorker(SqlContinuations(database), metrics=counted, bounds=bounds)
    key = fleet_key.history_key
    histories = Histories(store_worker, Sealer(key), max_bytes=settings.continuation_history_bytes)
    plain = PlainRenderer(upstream, credentials, seconds=EXAMINED_SECONDS)
    certificates = Certificates(store_worker)
    canaries = Canaries(fleet, plain, certificates, metrics=counted, ratio=settings.continuation_canary_ratio)
    parts = TurnParts(fleet, store_worker, histories, counted, key, max_keys=settings.continuation_max_keys)
    examiner = Examiner(fleet, plain, certificates, metrics=counted, chats=settings.continuation_certify_chats)
    return ContinuationParts(Turns(parts, on_plan=canaries), store_worker, examiner, canaries)
