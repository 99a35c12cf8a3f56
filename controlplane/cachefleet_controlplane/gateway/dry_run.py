"""Dry-run decisions, in full: workers are asked to render the prompt, and for nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.apis.parse import understand
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.attempts.attempt_plan import foreseen
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.placement.decision_trace import Basis, DecisionTrace
from cachefleet_controlplane.gateway.placement.routing_input import RoutingInput, RoutingInputBuilder
from cachefleet_controlplane.routing.decision import Decision, held_back
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, parse_fields
from cachefleet_controlplane.workers.views import ServedModel

DRY_RUN: Final = "dry-run"
"""Id in the record of a dry run."""

Find = Callable[[RequestInfo, TenantRecord], Awaitable[tuple[RequestInfo, ServedModel]]]
"""Returns a request with its model."""
Whole = Callable[[RequestInfo, TenantRecord, ServedModel], Awaitable[RequestInfo]]
"""Adds to a request the stored conversation that it continues."""

_endpoint = msgspec.json.Decoder(Endpoint)


class Explainer:
    """Decides without side effects: nothing is counted in flight, queued or recorded."""

    def __init__(
        self,
        input_builder: RoutingInputBuilder,
        context: GatewayContext,
        admission: AdmissionMiddleware,
        *,
        whole: Whole,
        find: Find,
        wall_clock: Callable[[], float],
    ) -> None:
        self._input_builder = input_builder
        self._whole = whole
        self._find = find
        self._parts = context
        self._admission = admission
        self._wall_clock = wall_clock

    async def __call__(self, body: bytes, tenant: str | None = None) -> DecisionRecord:
        """Return the decision record for a body, with all candidates; for the default tenant where none is named.

        ApiError as its client would get it; 404 for a tenant that does not exist.
        """
        fields = parse_fields(body)
        info = understand(fields, endpoint_of(fields))
        await self._admission.informed()
        known = self._admission.named(tenant)
        info, served = await self._find(info, known)
        routing_input = await self._input_builder.place(await self._whole(info, known, served), known, model=served)
        trace = DecisionTrace(DRY_RUN, self._wall_clock(), served.name, info.endpoint, status=0)
        trace.decision, trace.basis = self._decide(routing_input), Basis.of(routing_input)
        return trace.told(trace.decision, whole=True)

    def _decide(self, routing_input: RoutingInput) -> Decision:
        """Decide as for a request that arrives now: others may be queued before it."""
        decision = routing_input.decide(every=True)
        line = routing_input.model.namespace, routing_input.model.base
        arrived, priority = self._parts.clock(), routing_input.tenant.priority
        tenant = routing_input.tenant.name
        wait = self._parts.queue.others_first(line, priority=priority, arrived=arrived, tenant=tenant)
        return held_back(decision) if wait else foreseen(routing_input.gate, decision)


def endpoint_of(fields: Fields) -> Endpoint:
    """Return a dry run's endpoint: member `endpoint`, which is removed, else by other members. ApiError 400."""
    named = fields.pop("endpoint", None)
    if named is None:
        told_by = {"messages": Endpoint.CHAT, "input": Endpoint.RESPONSES}
        return next((endpoint for name, endpoint in told_by.items() if name in fields), Endpoint.COMPLETIONS)
    try:
        return _endpoint.decode(named)
    except READ_ERRORS as error:
        allowed = " or ".join(Endpoint)
        raise ApiError(400, f"`endpoint` must be {allowed}.", param="endpoint") from error
