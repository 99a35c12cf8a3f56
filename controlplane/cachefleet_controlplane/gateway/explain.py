"""What would be decided for a request now, in full: nothing is sent to a worker but the wish to render it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.admission import Door
from cachefleet_controlplane.gateway.apis.parse import understand
from cachefleet_controlplane.gateway.apis.request_info import Ask, Endpoint
from cachefleet_controlplane.gateway.attempts.context import Parts
from cachefleet_controlplane.gateway.attempts.gate_check import foreseen
from cachefleet_controlplane.gateway.placement.routing_input import Placer, Placing
from cachefleet_controlplane.gateway.placement.trace import Basis, Trace
from cachefleet_controlplane.routing.decision import Decision, held_back
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, parse_fields
from cachefleet_controlplane.workers.views import ServedModel

DRY_RUN: Final = "dry-run"
"""Stands for the id of what was not decided."""

Whole = Callable[[Ask, TenantRecord, ServedModel], Awaitable[Ask]]
"""Adds to a request what it continues."""

_endpoint = msgspec.json.Decoder(Endpoint)


class Explainer:
    """Decides without consequences: no ledger, queue or record knows of it."""

    def __init__(
        self, placer: Placer, parts: Parts, door: Door, *, whole: Whole, wall_clock: Callable[[], float]
    ) -> None:
        self._placer = placer
        self._whole = whole
        self._parts = parts
        self._door = door
        self._wall_clock = wall_clock

    async def __call__(self, body: bytes, tenant: str | None = None) -> DecisionRecord:
        """The record of a request with this body, with all candidates; of the default tenant where none is named.

        ApiError as its client would get it; 404 for a tenant that does not exist.
        """
        fields = parse_fields(body)
        ask = understand(fields, endpoint_of(fields))
        await self._door.informed()
        served, known = self._placer.find(ask.model), self._door.named(tenant)
        placing = await self._placer.place(await self._whole(ask, known, served), known)
        trace = Trace(DRY_RUN, self._wall_clock(), served.name, ask.endpoint, status=0)
        trace.decision, trace.basis = self._decide(placing), Basis.of(placing)
        return trace.told(trace.decision, whole=True)

    def _decide(self, placing: Placing) -> Decision:
        """As for a request that came this moment."""
        decision = placing.decide()
        line = placing.model.namespace, placing.model.upstream
        arrived, priority = self._parts.clock(), placing.tenant.priority
        wait = self._parts.queue.others_first(line, priority=priority, arrived=arrived)
        return held_back(decision) if wait else foreseen(placing.gate, decision)


def endpoint_of(fields: Fields) -> Endpoint:
    """The endpoint that a question for a decision is about: told by its body, or named there and taken out."""
    named = fields.pop("endpoint", None)
    if named is None:
        told_by = {"messages": Endpoint.CHAT, "input": Endpoint.RESPONSES}
        return next((endpoint for name, endpoint in told_by.items() if name in fields), Endpoint.COMPLETIONS)
    try:
        return _endpoint.decode(named)
    except READ_ERRORS as error:
        allowed = " or ".join(Endpoint)
        raise ApiError(400, f"`endpoint` must be {allowed}.", param="endpoint") from error
