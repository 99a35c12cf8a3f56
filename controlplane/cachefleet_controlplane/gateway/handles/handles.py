"""For which requests handles are used: conversations of models whose pools want it, by certified render profiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.handles.continuing import Continuing
from cachefleet_controlplane.gateway.handles.conversation_items import items_of
from cachefleet_controlplane.gateway.handles.fingerprints import fingerprints
from cachefleet_controlplane.gateway.handles.handle_memory import HandleMemory
from cachefleet_controlplane.gateway.handles.handle_metrics import HandleMetrics
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.wire.json_members import Fields
from cachefleet_controlplane.workers.render_profiles import Profile
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_core.continuation import KeptPrefix

REMEMBERED: Final = 50_000


@dataclass(frozen=True, slots=True)
class ByHandle:
    """A request that a worker has rendered by a handle: what it keeps of it, and the whole body."""

    model: str
    info: RequestInfo
    kept: KeptPrefix
    body: bytes


class Handles:
    """Begins requests that may go by handle. ``certified`` says whether all of a model's render profiles are.

    ``key`` keys the digests; ``on_continued`` is called with each request that was rendered by handle.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        key: bytes,
        metrics: Metrics,
        certified: Callable[[frozenset[Profile]], bool],
        on_continued: Callable[[ByHandle], None] = lambda _: None,
        remembered: int = REMEMBERED,
    ) -> None:
        self._fleet = fleet
        self._key = key
        self._metrics = HandleMetrics(metrics)
        self._certified = certified
        self._on_continued = on_continued
        self._memory = HandleMemory(remembered)

    def begin(
        self, info: RequestInfo, fields: Fields, *, model: ServedModel, tenant: str, salt: str
    ) -> Continuing | None:
        """Return what is kept of a request whose worker's body has these fields; None where it is always sent whole."""
        facts = self._fleet.render_facts(model.name)
        if not facts.conversations_at or info.bypass is not None or not _wanted(model):
            return None
        if not self._certified(facts.certifiable):
            return None
        name = f"{model.namespace}/{model.upstream}"
        items = items_of(info.endpoint, fields, key=self._key, owner=(name, tenant, salt))
        if items is None:
            return None
        return Continuing(
            self._memory,
            items,
            fingerprints(name, facts.rendered_by, info, key=self._key),
            keepers=facts.conversations_at,
            metrics=self._metrics,
            on_continued=partial(self._tell, model.name, info),
        )

    def _tell(self, model: str, info: RequestInfo, kept: KeptPrefix, body: bytes) -> None:
        self._on_continued(ByHandle(model, info, kept, body))


def _wanted(model: ServedModel) -> bool:
    """Whether every pool of a model wants handles."""
    return all(pool.spec.continuation.enabled and pool.spec.continuation.handles for pool in model.declared)
