"""Dry-run decisions, for clients and in full: workers are asked to render the prompt, and for nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from msgspec.structs import replace

from cachefleet_controlplane.gateway.admit.model_lookup import ModelLookup
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.apis.parse import understand
from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint, RequestInfo
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.place.fair_shares import Claim
from cachefleet_controlplane.gateway.place.placement_decision import decide
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace, decision_body, decision_headers
from cachefleet_controlplane.gateway.request.request import NO_MODEL, Request
from cachefleet_controlplane.gateway.retry.attempt_plan import foreseen
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.prompt_causes.prompt_lint import LintReport
from cachefleet_controlplane.routing.decision import held_back
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import JSON
from cachefleet_controlplane.wire.json_members import FALSE, READ_ERRORS, Fields, parse_fields

DRY_RUN: Final = "dry-run"
"""Id in the record of a dry run."""

Whole = Callable[[Request], Awaitable[Request]]
"""Adds to a request the stored conversation that it continues."""
Lint = Callable[[Request, str], LintReport]
"""Tells what of a request's prompt a pool's workers will not serve from cache."""

_endpoint = msgspec.json.Decoder(Endpoint)


class RouteLayer:
    """Answers with the decision alone: nothing is sent to a worker, counted in flight there, or queued."""

    def __init__(self, context: GatewayContext, lookup: PromptLookup, whole: Whole, lint: Lint) -> None:
        self._context = context
        self._lookup = lookup
        self._whole = whole
        self._lint = lint

    async def __call__(self, request: Request) -> None:
        """Answer a client."""
        arrival = request.arrival
        trace = arrival.trace
        request = await self.placed(request)
        decision = trace.decision = foreseen(request.gate, decide(self._context.fleet, request, every=True))
        request.describe(trace)
        lint = self._lint(request, decision.pool) if request.info.lint else None
        body = decision_body(trace.id, request.info, decision, request.rendering, lint)
        await arrival.reply.whole(200, [JSON, *decision_headers(trace.id, decision)], body)

    async def placed(self, request: Request) -> Request:
        """Return a request with all that a decision needs."""
        return self._context.affinity.applied(await self._lookup.complete(await self._whole(request)))


class Explainer:
    """Decides as for a request that arrives now, and tells all of the decision."""

    def __init__(
        self,
        context: GatewayContext,
        route: RouteLayer,
        models: ModelLookup,
        admission: AdmissionMiddleware,
        *,
        wall_clock: Callable[[], float],
    ) -> None:
        self._context = context
        self._route = route
        self._models = models
        self._admission = admission
        self._wall_clock = wall_clock

    async def __call__(self, body: bytes, tenant: str | None = None) -> DecisionRecord:
        """Return the decision record for a body, with all candidates; for the default tenant where none is named.

        ApiError as its client would get it; 404 for a tenant that does not exist.
        """
        info = parse_dry_run(body)
        await self._admission.informed()
        request = Request(info, NO_MODEL, self._admission.named(tenant))
        info, model = await self._models.of(request, info)
        request = await self._route.placed(replace(request, info=info, model=model))
        trace = DecisionTrace(DRY_RUN, self._wall_clock(), model.name, info.endpoint, status=0)
        trace.decision = decision = decide(self._context.fleet, request, every=True)
        trace.decision = held_back(decision) if self._others_first(request) else foreseen(request.gate, decision)
        request.describe(trace)
        return trace.made(whole=True)

    def _others_first(self, request: Request) -> bool:
        """Whether others are queued before it."""
        arrived, tenant = self._context.clock(), request.tenant
        claim = Claim(request.line, tenant.priority, arrived, tenant.name, tenant.weight)
        return self._context.queue.others_first(claim)


def parse_dry_run(body: bytes) -> RequestInfo:
    """Return what the body of a dry run says, for the endpoint that it is about. ApiError 400."""
    fields = parse_fields(body)
    endpoint, lint = _endpoint_of(fields), _asks_lint(fields)
    if lint and endpoint not in GENERATING:
        raise ApiError(400, f"`lint` is about {', '.join(GENERATING)}; not {endpoint}.", param="lint")
    info = understand(fields, endpoint)
    return replace(info, lint=True) if lint else info


def _asks_lint(fields: Fields) -> bool:
    """Whether a dry run has the member `lint`, which is removed. ApiError 400."""
    given = bytes(fields.pop("lint", FALSE))
    if given not in {b"true", b"false", b"null"}:
        raise ApiError(400, "`lint` must be true or false.", param="lint")
    return given == b"true"


def _endpoint_of(fields: Fields) -> Endpoint:
    """A dry run's endpoint: member `endpoint`, which is removed, else by other members. ApiError 400."""
    named = fields.pop("endpoint", None)
    if named is None:
        by_member = {"messages": Endpoint.CHAT, "input": Endpoint.RESPONSES}
        return next((endpoint for name, endpoint in by_member.items() if name in fields), Endpoint.COMPLETIONS)
    try:
        return _endpoint.decode(named)
    except READ_ERRORS as error:
        allowed = " or ".join(Endpoint)
        raise ApiError(400, f"`endpoint` must be {allowed}.", param="endpoint") from error
