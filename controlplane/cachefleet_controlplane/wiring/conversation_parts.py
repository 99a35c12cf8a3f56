"""Builds the parts that continue conversations from the settings of a control plane."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.converse.certification.canary import Canaries
from cachefleet_controlplane.gateway.converse.certification.certificates import Certificates
from cachefleet_controlplane.gateway.converse.certification.examiner import Examiner
from cachefleet_controlplane.gateway.converse.certification.plain_render import PlainRenderer
from cachefleet_controlplane.gateway.converse.checkpoint_repository import SqlContinuations, pruning
from cachefleet_controlplane.gateway.converse.conversation_metrics import ContinuationMetrics
from cachefleet_controlplane.gateway.converse.encryption import HistoryCipher
from cachefleet_controlplane.gateway.converse.response_histories import Histories
from cachefleet_controlplane.gateway.converse.turns import TurnContext, Turns
from cachefleet_controlplane.gateway.handles.handles import Handles
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.store.content.store_thread import ANSWER_SECONDS, StoreThread, StoreThreadBounds
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.tenancy import FleetKey

EXAMINED_SECONDS: Final = 30.0
"""How long a worker may take for one question of a canary or an examination; no client waits for it."""


@dataclass(frozen=True, slots=True)
class ConversationParts:
    """The parts that continue conversations; run ``store_thread`` and ``examiner`` as tasks, close ``canaries`` and
    ``unseen`` at the end.
    """

    turns: Turns
    store_thread: StoreThread[SqlContinuations]
    examiner: Examiner
    canaries: Canaries
    handles: Handles
    unseen: UnseenText


def conversation_parts(
    settings: Settings,
    fleet_key: FleetKey,
    database: Database,
    *,
    fleet: Fleet,
    upstream: Upstream,
    credentials: Credentials,
    metrics: Metrics,
    store_seconds: float = ANSWER_SECONDS,
) -> ConversationParts:
    """Build the parts that continue conversations, store responses and certify render profiles."""
    counted = ContinuationMetrics(metrics)
    store_thread = StoreThread(
        SqlContinuations(database),
        "conversations",
        failed=counted.store_failed,
        prune=pruning(settings.continuation_responses, settings.continuation_conversations),
        bounds=StoreThreadBounds(answer_seconds=store_seconds),
    )
    key = fleet_key.history_key
    histories = Histories(store_thread, HistoryCipher(key), max_bytes=settings.continuation_history_bytes)
    plain = PlainRenderer(upstream, credentials, seconds=EXAMINED_SECONDS)
    certificates = Certificates(store_thread)
    canaries = Canaries(fleet, plain, certificates, metrics=counted, ratio=settings.continuation_canary_ratio)
    unseen = UnseenText(partial(rendered, fleet, plain), fleet.render_facts)
    parts = TurnContext(fleet, store_thread, histories, counted, key, unseen)
    examiner = Examiner(fleet, plain, certificates, metrics=counted, chats=settings.continuation_certify_chats)
    handles = Handles(
        *(fleet, upstream, credentials),
        key=key,
        metrics=metrics,
        certified=certificates.hold,
        on_continued=canaries.rendered_by_handle,
        unseen=unseen,
    )
    return ConversationParts(Turns(parts, on_plan=canaries), store_thread, examiner, canaries, handles, unseen)


async def rendered(
    fleet: Fleet, plain: PlainRenderer, model: ServedModel, endpoint: Endpoint, body: bytes
) -> array[int] | None:
    """The ids to which a ready worker of a model renders a body; None where none is there, or tells."""
    workers = fleet.renderers(model.name, 1)
    return await plain.rendered(workers[0], endpoint, body) if workers else None
