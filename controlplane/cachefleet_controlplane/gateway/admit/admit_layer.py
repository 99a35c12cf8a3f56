"""The layer of admission: reads a request's body, finds its model, and counts what it asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from cachefleet_native import permitted_headers
from msgspec.structs import replace

from cachefleet_controlplane.gateway.admit.model_lookup import (
    ElsewhereError,
    ModelLookup,
    rewritten,
)
from cachefleet_controlplane.gateway.admit.objective_priority import with_objective
from cachefleet_controlplane.gateway.admit.passed_requests import KeptBody, PassedRequests, can_be_passed
from cachefleet_controlplane.gateway.admit.request_bodies import RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import admitted_request
from cachefleet_controlplane.gateway.apis.audio_form import WORKERS_CONTENT_TYPE
from cachefleet_controlplane.gateway.apis.request_info import (
    PREFER,
    TOLD_HEADER,
    RequestInfo,
    preferred_wait,
    wants_told,
)
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives
from cachefleet_controlplane.tenants.allowed_models import AllowedModels
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import has_any
from cachefleet_controlplane.wire.http_exchange import DEPARTURE, ClientGoneError, while_present
from cachefleet_controlplane.workers.views import ServedModel

Parser = Callable[[Request], Callable[[bytes], RequestInfo]]
"""Returns what parses the body of a request."""
_ASKING: Final = frozenset({PREFER, TOLD_HEADER})


class AdmitLayer:
    """Has requests answered while their clients are there.

    ``counts``: a request counts against its tenant's limit as many times as it has sequences; ``objectives`` give those
    that name one their priority.
    """

    def __init__(
        self,
        bodies: RequestBodies,
        models: ModelLookup,
        parser: Parser,
        answer: Layer,
        *,
        clock: Callable[[], float],
        counts: bool = False,
        objectives: InferenceObjectives | None = None,
        passed: PassedRequests | None = None,
    ) -> None:
        self._bodies = bodies
        self._models = models
        self._parser = parser
        self._answer = answer
        self._clock = clock
        self._counts = counts
        self._objectives = InferenceObjectives() if objectives is None else objectives
        self._passed = passed

    async def __call__(self, request: Request) -> None:
        """Answer a request of an admitted tenant. ApiError 400, 404, 408, 413, 415, 429, 503; ClientGoneError."""
        arrival = request.arrival
        with self._bodies.share(request.tenant.name) as share:
            parse, kept = self._parser(request), None
            if self._passed is not None:
                parse = kept = KeptBody(parse)
            info = await self._bodies.read(arrival.scope, arrival.receive, share, parse)
            answer = self._with_model(replace(request, received_bytes=share.held), info, kept)
            del info  # the next layers decide how much of it is kept, and how long
            if not await while_present(answer, arrival.receive, arrival.reply, arrival.scope.get(DEPARTURE)):
                raise ClientGoneError

    async def _with_model(self, request: Request, info: RequestInfo, kept: KeptBody | None) -> None:
        scope, trace = request.arrival.scope, request.arrival.trace
        if trace.span is not None:
            trace.span.phase("admission", trace.span.arrived, self._clock())
        allowed = admitted_request(scope).models
        find = self._models.of if allowed is None else partial(self._of_allowed, allowed)
        try:
            info, model = await find(request, rewritten(info, scope["headers"]))
        except ElsewhereError as elsewhere:
            if kept is None or self._passed is None or not can_be_passed(request.client):
                raise
            return await self._pass_on(self._passed, request, kept, elsewhere)
        if kept is not None:
            kept.take()
        if self._counts and (sequences := info.sequences) > 1:
            admitted_request(scope).count(sequences)
        trace.model = model.name
        if self._objectives:
            request = self._with_objective(request, model)
        given = scope.pop("headers")
        headers = permitted_headers(given, trusted=request.tenant.trusted)  # they may stay for long
        if info.form is not None:
            headers.append((WORKERS_CONTENT_TYPE, info.form.content_type))
        wait, told = (preferred_wait(given), wants_told(given)) if has_any(given, _ASKING) else (None, False)
        answer = self._answer(replace(request, info=info, model=model, headers=headers, wait_seconds=wait, told=told))
        del request, info
        return await answer

    async def _of_allowed(
        self, allowed: AllowedModels, request: Request, info: RequestInfo
    ) -> tuple[RequestInfo, ServedModel]:
        """As ``ModelLookup.of``, of the models that a key may use, with words that name no others."""
        try:
            return await self._models.of(request, info, allowed)
        except ElsewhereError as elsewhere:
            if allowed.allow(elsewhere.model):
                raise
            raise allowed.refusal(elsewhere.model) from elsewhere
        except ApiError as error:
            if error.param != "model":
                raise
            raise allowed.refusal(info.model) from error

    def _with_objective(self, request: Request, model: ServedModel) -> Request:
        scope = request.arrival.scope
        may_raise = admitted_request(scope).may_go_first
        tenant = with_objective(request.tenant, scope["headers"], model, self._objectives, may_raise=may_raise)
        return request if tenant is request.tenant else replace(request, tenant=tenant)

    async def _pass_on(
        self, passed: PassedRequests, request: Request, kept: KeptBody, elsewhere: ElsewhereError
    ) -> None:
        """Have another control plane answer, which counts the request and accounts for it in place of this one."""
        arrival = request.arrival
        arrival.trace.passed_to = elsewhere.control_plane
        admitted_request(arrival.scope).uncount()
        await passed.answer(arrival.scope, arrival.reply, kept.take(), elsewhere)
