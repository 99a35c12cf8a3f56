"""The gateway as a raw ASGI application: names requests, admits them, and answers what goes wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from cachefleet_controlplane.gateway.access_log import AccessLog
from cachefleet_controlplane.gateway.admit.tenant_admission import ADMITTED, ARRIVED, AdmittedRequest, OverLimitError
from cachefleet_controlplane.gateway.answers_under_way import restarting
from cachefleet_controlplane.gateway.health import OPEN_PATHS
from cachefleet_controlplane.gateway.layers import GatewayParts, layers
from cachefleet_controlplane.gateway.model_cards import MODELS_PATH, is_anthropic
from cachefleet_controlplane.gateway.place.refusals import RETRY_AFTER_SECONDS
from cachefleet_controlplane.gateway.responses_socket.responses_socket import ResponsesSocket
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.gateway.routes import DECIDED, OWN_NAME, Routes
from cachefleet_controlplane.transport.native_exchange import reply_of
from cachefleet_controlplane.wire.cross_origin import AllowedOrigins
from cachefleet_controlplane.wire.errors import ANTHROPIC_PATH, ApiError
from cachefleet_controlplane.wire.headers import NAMES, answer_names, request_id
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Receive, Reply, Scope, Send
from cachefleet_controlplane.wire.request_paths import plain_path
from cachefleet_runtime.random_ids import RandomIds

logger = logging.getLogger(__name__)

Enter = Callable[[], AdmittedRequest]
"""Admits a request. ApiError."""


class Gateway:
    """ASGI application of the APIs, for all models and tenants."""

    def __init__(
        self,
        parts: GatewayParts,
        *,
        sockets: SocketLimits | None = None,
        new_id: Callable[[], str] | None = None,
        ready: Callable[[], bool] = lambda: True,
        origins: AllowedOrigins | None = None,
        access_log: bool = False,
    ) -> None:
        self._context, self._admission, self._bounds = parts.context, parts.admission, parts.bounds
        self._wall_clock = parts.wall_clock
        self._other_id = RandomIds().next
        self._new_id = new_id or self._other_id
        stack = layers(parts)
        self.explain, self.bodies, self._passed = stack.explain, stack.bodies, stack.passed
        self._routes = Routes(parts, stack, ready)
        self._origins = origins or AllowedOrigins()
        self._answer = self._cross_origin if self._origins else self._serve
        self._log = AccessLog(parts.context.clock) if access_log else None
        metrics = parts.context.metrics
        self._socket = ResponsesSocket(self, parts.admission, stack.bodies, metrics=metrics, limits=sockets)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._name(scope)
        if scope["type"] == "websocket":
            return await self._socket(scope, receive, send)
        reply = reply_of(scope, send, seconds=self._bounds.send_seconds)
        reply.names = scope[NAMES]
        began = self._log.began() if self._log is not None else 0.0
        self._context.metrics.request_started()
        answered_by = self._context.under_way.begin()
        try:
            await self._answer(scope, receive, reply)
        except ClientGoneError:
            self._context.metrics.client_gone()
        finally:
            self._context.under_way.end(answered_by)
            self._context.metrics.request_ended()
            if self._log is not None:
                self._log.ended(scope, reply, began)

    def _name(self, scope: Scope) -> None:
        """Give a request its name, and the path that it is meant for."""
        path = scope["path"] = plain_path(scope["path"])
        decides = path in DECIDED and scope.get("method") == "POST"
        scope[OWN_NAME] = own = self._new_id() if decides else self._other_id()
        anthropic = path.startswith(ANTHROPIC_PATH) or (path.startswith(MODELS_PATH) and is_anthropic(scope))
        scope[NAMES] = answer_names(request_id(scope["headers"]) or own, anthropic=anthropic)

    @property
    def under_way(self) -> int:
        """Open requests."""
        return len(self._context.under_way)

    def end_answers(self) -> None:
        """End the answers under way: the replica stops, and the time to finish them is over."""
        if ended := self._context.under_way.stop():
            logger.warning("answers were still under way when the time to stop was over: %d", ended)

    async def _cross_origin(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Serve a request that a page of another origin may have sent, or answer its browser's question before it."""
        headers = scope["headers"]
        reply.names = (*reply.names, *self._origins.told(headers))
        if asked := self._origins.preflight(scope["method"], headers):
            await reply.whole(204, asked, b"")
        else:
            await self._serve(scope, receive, reply)

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply, enter: Enter | None = None) -> None:
        try:
            handler = self._routes.handler(scope, reply)
            if scope["path"] in OPEN_PATHS:
                return await handler(scope, receive, reply)
            self._admit()
            scope[ARRIVED] = self._context.clock()
            await self._admission.informed()
            try:
                entered = (
                    enter() if enter else self._admission.enter(scope["headers"], limited=scope["method"] == "POST")
                )
            except ApiError as refusal:
                return await self._unadmitted(scope, receive, reply, refusal)
            with entered as admitted:
                scope[ADMITTED] = admitted
                self._tell_limits(scope, reply, admitted)
                await handler(scope, receive, reply)
        except ApiError as error:
            await reply.error(error)
        except ClientGoneError:
            raise
        except asyncio.CancelledError:
            if not self._context.under_way.ended():
                raise
            self._context.metrics.answer_stopped()
            await reply.cut_short(restarting())
        except Exception:  # the root of a request's task: a defect fails this request only
            logger.exception("a request failed unexpectedly", extra={"path": scope["path"]})
            await self._failed(reply)

    async def serve_own(self, scope: Scope, receive: Receive, send: Send, enter: Enter) -> None:
        """Answer a request that this process makes itself, which ``enter`` admits (ApiError)."""
        self._name(scope)
        reply = Reply(send, seconds=self._bounds.send_seconds, path=scope["path"])
        reply.names = scope[NAMES]
        self._context.metrics.request_started()
        try:
            await self._serve(scope, receive, reply, enter)
        finally:
            self._context.metrics.request_ended()

    async def _failed(self, reply: Reply) -> None:
        """Count a defect, and tell the client of it."""
        self._context.metrics.task_error("gateway")
        if not reply.started:
            await reply.error(ApiError(500, "The gateway failed."))

    async def _unadmitted(self, scope: Scope, receive: Receive, reply: Reply, refusal: ApiError) -> None:
        """Have another control plane answer a request that is not admitted here, where it serves the model."""
        if isinstance(refusal, OverLimitError):
            self._tell_limits(scope, reply, refusal)
        if self._passed is None or scope["path"] not in DECIDED or scope["method"] != "POST":
            raise refusal
        await self._passed.unadmitted(scope, receive, reply, refusal)

    def _tell_limits(self, scope: Scope, reply: Reply, told: AdmittedRequest | OverLimitError) -> None:
        """Tell the client what its tenant's limits leave, in the headers of the API that it asks."""
        if told.limited:
            anthropic = scope["path"].startswith(ANTHROPIC_PATH)
            reply.names = (*reply.names, *told.rooms.headers(anthropic=anthropic, now=self._wall_clock()))

    def _admit(self) -> None:
        if self._context.under_way.stopped:
            raise restarting()
        if self.under_way > self._bounds.requests:
            raise ApiError(503, "Too many requests are under way.", headers={"retry-after": str(RETRY_AFTER_SECONDS)})
