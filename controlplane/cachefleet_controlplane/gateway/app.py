"""The gateway as a raw ASGI application: its routes, and accounting of each request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.account.hot_observer import HotObserver
from cachefleet_controlplane.gateway.account.lost_hits import LostHits
from cachefleet_controlplane.gateway.account.request_account import ARRIVED, Record, RequestAccount
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds, RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import ADMITTED, AdmissionMiddleware, admitted_request
from cachefleet_controlplane.gateway.answers_under_way import restarting
from cachefleet_controlplane.gateway.apis.parse import understand
from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.apis.responses import without_history
from cachefleet_controlplane.gateway.attempts.attempt_plan import foreseen
from cachefleet_controlplane.gateway.attempts.exchange import Exchange
from cachefleet_controlplane.gateway.attempts.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.attempts.resume import Resumption
from cachefleet_controlplane.gateway.conversations.rehydration import PREVIOUS, continued, previous_id
from cachefleet_controlplane.gateway.conversations.retention import allowance
from cachefleet_controlplane.gateway.conversations.turn import PlainTurn, Turn
from cachefleet_controlplane.gateway.conversations.turn_plan import with_handle
from cachefleet_controlplane.gateway.conversations.turns import Turns
from cachefleet_controlplane.gateway.dry_run import Explainer, endpoint_of
from cachefleet_controlplane.gateway.handles.sending import Sending
from cachefleet_controlplane.gateway.health import OPEN_PATHS, Handler, Health
from cachefleet_controlplane.gateway.model_cards import MODELS_PATH, ModelListing, is_anthropic
from cachefleet_controlplane.gateway.openapi import OPENAPI_PATH, serve_document
from cachefleet_controlplane.gateway.placement.decision_trace import (
    Basis,
    DecisionTrace,
    decision_body,
    decision_headers,
)
from cachefleet_controlplane.gateway.placement.refusals import RETRY_AFTER_SECONDS
from cachefleet_controlplane.gateway.placement.routing_input import Answering, RoutingInput, RoutingInputBuilder
from cachefleet_controlplane.gateway.response_resources import (
    COMPACT_PATH,
    INPUT_TOKENS_PATH,
    StoredResponses,
    counted,
    refuse_compaction,
)
from cachefleet_controlplane.gateway.responses_socket.create_event import memory_of, parser_of
from cachefleet_controlplane.gateway.responses_socket.response_memory import Before, ResponseMemory
from cachefleet_controlplane.gateway.responses_socket.responses_socket import ResponsesSocket, upgrade_required
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.transport.native_exchange import reply_of
from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, ApiError
from cachefleet_controlplane.wire.headers import (
    ACCOUNT,
    NAMES,
    Header,
    answer_names,
    identified,
    permitted_headers,
    request_id,
)
from cachefleet_controlplane.wire.http_exchange import (
    DEPARTURE,
    JSON,
    ClientGoneError,
    Receive,
    Reply,
    Scope,
    Send,
    while_present,
)
from cachefleet_controlplane.wire.json_members import encode, is_null, parse_fields
from cachefleet_controlplane.wire.request_paths import meant_path, no_such_path, plain_path
from cachefleet_controlplane.workers.views import ServedModel
from cachefleet_runtime.random_ids import RandomIds

logger = logging.getLogger(__name__)

ROUTE_PATH: Final = "/v1/route"
_ENDPOINTS: Final = {endpoint.value: endpoint for endpoint in Endpoint}
_DECIDED: Final = frozenset({*_ENDPOINTS, ROUTE_PATH, INPUT_TOKENS_PATH})
"""Paths to which a POST has a record of its own, if only in metrics and accounts."""
OWN_NAME: Final = "cachefleet.name"
"""Member of the ASGI scope: the gateway's own name for the request, which its decision has, too."""


class Gateway:
    """ASGI application of the APIs, for all models and tenants."""

    def __init__(
        self,
        context: GatewayContext,
        input_builder: RoutingInputBuilder,
        *,
        admission: AdmissionMiddleware,
        record: Record,
        bounds: GatewayBounds,
        turns: Turns | None = None,
        hot: HotObserver | None = None,
        sockets: SocketLimits | None = None,
        history: CacheHistory | None = None,
        recorded: RecordedRequests | None = None,
        wall_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] | None = None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self._parts = context
        self._input_builder = input_builder
        self._turns = turns
        self._hot = hot
        self._admission = admission
        lost = LostHits(
            *(context.fleet, context.metrics, history or CacheHistory()),
            salt_version=admission.salt_version,
            served=hot.served if hot else None,
            wall=wall_clock,
        )
        self._account = RequestAccount(context, record, admission.salt_version, lost, recorded)
        self._bounds = bounds
        self.bodies = RequestBodies(bounds)
        self._wall_clock = wall_clock
        self._other_id = RandomIds().next
        self._new_id = new_id or self._other_id
        self.explain = Explainer(
            input_builder, context, admission, whole=self._whole, find=self._served, wall_clock=wall_clock
        )
        self._socket = ResponsesSocket(self, admission, self.bodies, metrics=context.metrics, limits=sockets)
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            **{endpoint: {"POST": self._ask} for endpoint in Endpoint},
            Endpoint.RESPONSES: {"POST": self._ask, "GET": upgrade_required},
            ROUTE_PATH: {"POST": self._route},
            MODELS_PATH: dict.fromkeys(("GET", "HEAD"), ModelListing(context.fleet, input_builder.find)),
            INPUT_TOKENS_PATH: {"POST": self._count},
            COMPACT_PATH: {"POST": refuse_compaction},
            OPENAPI_PATH: {"GET": serve_document},
            **Health(ready).routes(),
        }
        self._stored = StoredResponses(None if turns is None else turns.histories, self._stores)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._name(scope)
        if scope["type"] == "websocket":
            return await self._socket(scope, receive, send)
        reply = reply_of(scope, send, seconds=self._bounds.send_seconds)
        reply.names = scope[NAMES]
        self._parts.metrics.request_started()
        answered_by = self._parts.under_way.begin()
        try:
            await self._serve(scope, receive, reply)
        except ClientGoneError:
            self._parts.metrics.client_gone()
        finally:
            self._parts.under_way.end(answered_by)
            self._parts.metrics.request_ended()

    def _name(self, scope: Scope) -> None:
        """Give a request its name, and the path that it is meant for."""
        path = scope["path"] = plain_path(scope["path"])
        decides = path in _DECIDED and scope.get("method") == "POST"
        scope[OWN_NAME] = own = self._new_id() if decides else self._other_id()
        anthropic = path.startswith(ANTHROPIC_PATH) or (path.startswith(MODELS_PATH) and is_anthropic(scope))
        scope[NAMES] = answer_names(request_id(scope["headers"]) or own, anthropic=anthropic)

    @property
    def under_way(self) -> int:
        """Open requests."""
        return len(self._parts.under_way)

    def end_answers(self) -> None:
        """End the answers under way: the replica stops, and the time to finish them is over."""
        if ended := self._parts.under_way.stop():
            logger.warning("answers were still under way when the time to stop was over: %d", ended)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            handler = self._handler(scope, reply)
            if scope["path"] in OPEN_PATHS:
                return await handler(scope, receive, reply)
            self._admit()
            scope[ARRIVED] = self._parts.clock()
            await self._admission.informed()
            with self._admission.enter(scope["headers"], limited=scope["method"] == "POST") as admitted:
                scope[ADMITTED] = admitted
                await handler(scope, receive, reply)
        except ApiError as error:
            await reply.error(error)
        except ClientGoneError:
            raise
        except asyncio.CancelledError:
            if not self._parts.under_way.ended():
                raise
            self._parts.metrics.answer_stopped()
            await reply.cut_short(restarting())
        except Exception:  # the root of a request's task: a defect fails this request only
            logger.exception("a request failed unexpectedly", extra={"path": scope["path"]})
            self._parts.metrics.task_error("gateway")
            if not reply.started:
                await reply.error(ApiError(500, "The gateway failed."))

    def _admit(self) -> None:
        if self._parts.under_way.stopped:
            raise restarting()
        if self.under_way > self._bounds.requests:
            raise ApiError(503, "Too many requests are under way.", headers={"retry-after": str(RETRY_AFTER_SECONDS)})

    def _handler(self, scope: Scope, reply: Reply) -> Handler:
        path, method = scope["path"], scope["method"]
        methods = self._routes.get(path)
        if methods is None and path.startswith(MODELS_PATH + "/"):
            methods = self._routes[MODELS_PATH]
        if methods is None:
            methods = self._stored.handler(path)
        if methods is None:
            meant = meant_path(path, self._routes)
            reply.path = meant or path
            raise no_such_path(path, meant)
        if method not in methods:
            raise ApiError(405, f"{path} takes no {method}.", headers={"allow": ", ".join(methods)})
        return methods[method]

    async def _ask(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        began = self._parts.clock()
        endpoint = _ENDPOINTS[scope["path"]]
        trace = self._trace(scope, endpoint)
        self._account.begin_span(trace, scope, began)
        admitted = admitted_request(scope)
        understood = partial(parser_of(scope), endpoint=endpoint, trusted=admitted.tenant.trusted)
        with self._account.of(trace, reply, admitted), self.bodies.share(admitted.tenant.name) as share:
            work = self._answer(await self.bodies.read(scope, receive, share, understood), scope, reply, trace, began)
            if not await while_present(work, receive, reply, scope.get(DEPARTURE)):
                raise ClientGoneError

    def _trace(self, scope: Scope, endpoint: str) -> DecisionTrace:
        named = request_id(scope["headers"])
        return DecisionTrace(scope[OWN_NAME], self._wall_clock(), model="", endpoint=endpoint, request_id=named)

    async def _answer(self, info: RequestInfo, scope: Scope, reply: Reply, trace: DecisionTrace, began: float) -> None:
        if trace.span is not None:
            trace.span.phase("admission", trace.span.arrived, self._parts.clock())
        admitted, memory = admitted_request(scope), memory_of(scope)
        admitted.count(info.sequences)
        tenant = admitted.tenant
        info, model = await self._served(info, tenant, memory)
        headers = permitted_headers(scope["headers"], trusted=tenant.trusted)
        trace.model = model.name
        turn = await self._turn(info, headers, tenant, model, memory=memory)
        del info  # from here on the exchange decides how much of it is kept, and how long
        headers = self._named(headers, turn, trace)
        continuing = held = None
        try:
            answering = Answering(headers, self._marked, reply.native)
            routing_input = await self._input_builder.place(
                turn.info, tenant, model=model, keep_ids=turn.keeps_ids, answering=answering
            )
            continuing, held = routing_input.continuing, routing_input.rendering.held_answer
            trace.basis = Basis.of(routing_input)
            if trace.span is not None:
                trace.span.phase("render", (now := self._parts.clock()) - routing_input.render_seconds, now)
            if self._hot is not None:
                self._hot.note(routing_input)
            routing_input = turn.placed(routing_input, lambda: trace.decision)
            exchange = Exchange(self._parts, routing_input, reply=reply, trace=trace, began=began, turn=turn)
            del routing_input
            await exchange.run(headers)
        finally:
            if held is not None:
                held.drop()
            self._over(turn, trace, continuing)

    def _named(self, headers: list[Header], turn: Turn, trace: DecisionTrace) -> list[Header]:
        """Headers for workers, with the names by which they know the conversation and are asked about the answer."""
        headers = identified(headers, trace.id) if turn.named else headers
        asked = not turn.info.stream and self._account.may_ask_of(trace.model)
        return [*headers, (ACCOUNT, trace.id.encode())] if asked else headers

    def _over(self, turn: Turn, trace: DecisionTrace, continuing: Sending | None) -> None:
        used = None if continuing is None else continuing.ended(trace.decision.url if trace.decision else "")
        trace.continuation = with_handle(turn.outcome, used)
        turn.outcome = turn.outcome and trace.continuation
        if self._turns is not None:
            self._turns.over(turn)

    async def _turn(
        self,
        info: RequestInfo,
        headers: list[Header],
        tenant: TenantRecord,
        model: ServedModel,
        *,
        memory: ResponseMemory | None,
    ) -> Turn:
        async def begin(info: RequestInfo, before: Before = None) -> Turn:
            if self._turns is not None:
                return await self._turns.begin(info, headers, tenant=tenant, model=model, before=before)
            return PlainTurn(without_history(info) if before is None else continued(info, before))

        return await begin(info) if memory is None else await memory.turn(info, begin)

    def _marked(self, routing_input: RoutingInput) -> bytes:
        """Return the body of a request's first attempt."""
        return Resumption.of(self._parts.fleet, routing_input).routing_input.body

    async def _whole(self, info: RequestInfo, tenant: TenantRecord, model: ServedModel) -> RequestInfo:
        """Return the request with the stored conversation that it continues."""
        return without_history(info) if self._turns is None else await self._turns.whole(info, tenant, model)

    async def _route(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        trace = self._trace(scope, ROUTE_PATH)
        admitted = admitted_request(scope)
        with self._account.of(trace, reply, admitted), self.bodies.share(admitted.tenant.name) as share:
            fields = await self.bodies.read(scope, receive, share, parse_fields)
            info = understand(fields, endpoint_of(fields))
            if not await while_present(self._decide(info, scope, reply, trace), receive, reply, scope.get(DEPARTURE)):
                raise ClientGoneError

    async def _decide(self, info: RequestInfo, scope: Scope, reply: Reply, trace: DecisionTrace) -> None:
        """Answer with the decision alone: nothing is sent to a worker, or counted as in flight there."""
        tenant = admitted_request(scope).tenant
        info, model = await self._served(info, tenant)
        trace.model = model.name
        routing_input = await self._input_builder.place(await self._whole(info, tenant, model), tenant, model=model)
        decision = trace.decision = foreseen(routing_input.gate, routing_input.decide(every=True))
        trace.basis = Basis.of(routing_input)
        told = decision_body(trace.id, info, decision, routing_input.rendering)
        await reply.whole(200, [JSON, *decision_headers(trace.id, decision)], told)

    async def _count(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Count the tokens of a response's input."""
        trace, admitted = self._trace(scope, INPUT_TOKENS_PATH), admitted_request(scope)
        with self._account.of(trace, reply, admitted), self.bodies.share(admitted.tenant.name) as share:
            info = understand(await self.bodies.read(scope, receive, share, parse_fields), Endpoint.RESPONSES)
            work = self._count_tokens(info, admitted.tenant, reply, trace)
            if not await while_present(work, receive, reply, scope.get(DEPARTURE)):
                raise ClientGoneError

    async def _count_tokens(self, info: RequestInfo, tenant: TenantRecord, reply: Reply, trace: DecisionTrace) -> None:
        info, model = await self._served(info, tenant)
        trace.model = model.name
        routing_input = await self._input_builder.place(await self._whole(info, tenant, model), tenant, model=model)
        await reply.whole(200, [JSON], counted(routing_input.rendering))

    async def _served(
        self, info: RequestInfo, tenant: TenantRecord, memory: ResponseMemory | None = None
    ) -> tuple[RequestInfo, ServedModel]:
        """Return a request with its model: the one that it names, else that of the conversation which it continues.

        ApiError 400, 404; 503 where the store that knows it cannot be read.
        """
        if info.model or len(self._parts.fleet.models()) == 1:
            model = self._input_builder.find(info.model)
        else:
            name = await self._continued_model(info, tenant, memory)
            model = self._input_builder.find(name)
            info = replace(info, model=name, fields=info.fields | {"model": Raw(encode(name))})
        if memory is not None:
            memory.model = model.name
        return info, model

    async def _continued_model(self, info: RequestInfo, tenant: TenantRecord, memory: ResponseMemory | None) -> str:
        """The model of the response that a request continues, else the last one of its connection; "" for neither."""
        continues = info.endpoint is Endpoint.RESPONSES and not is_null(info.fields, PREVIOUS)
        previous = previous_id(info) if continues else ""
        if memory is not None and (not previous or memory.holds(previous)):
            return memory.model
        stored = await self._turns.histories.model(tenant.name, previous) if previous and self._turns else ""
        return stored or ("" if memory is None else memory.model)

    def _stores(self) -> bool:
        """Whether any model's responses are stored."""
        return any(allowance(model.declared).history for model in self._parts.fleet.models())
