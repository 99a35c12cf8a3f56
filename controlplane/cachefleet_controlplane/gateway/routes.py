"""The paths of the gateway's APIs, and what answers each of their methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cachefleet_controlplane.gateway.admit.model_lookup import listed_model
from cachefleet_controlplane.gateway.admit.tenant_admission import admitted_request, allowed_models
from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.gateway.batches.batch_openapi import BATCHES_CHAPTER
from cachefleet_controlplane.gateway.batches.batch_routes import batch_handlers
from cachefleet_controlplane.gateway.converse.retention import allowance
from cachefleet_controlplane.gateway.health import Handler, Health
from cachefleet_controlplane.gateway.layers import GatewayParts, Layers
from cachefleet_controlplane.gateway.model_cards import MODELS_PATH, ModelListing
from cachefleet_controlplane.gateway.openapi import OPENAPI_PATH, serves_document
from cachefleet_controlplane.gateway.request.decision_trace import TRACE, DecisionTrace
from cachefleet_controlplane.gateway.request.request import NO_MODEL, UNREAD, Arrival, Layer, Request
from cachefleet_controlplane.gateway.response_resources import (
    COMPACT_PATH,
    INPUT_TOKENS_PATH,
    StoredResponses,
    refuse_compaction,
)
from cachefleet_controlplane.gateway.responses_socket.responses_socket import upgrade_required
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_controlplane.wire.headers import request_id
from cachefleet_controlplane.wire.http_exchange import Receive, Reply, Scope
from cachefleet_controlplane.wire.request_paths import meant_path, no_such_path

ROUTE_PATH: Final = "/v1/route"
DECIDED: Final = frozenset({*Endpoint, ROUTE_PATH, INPUT_TOKENS_PATH})
"""Paths to which a POST has a record of its own, if only in metrics and accounts."""
OWN_NAME: Final = "cachefleet.name"
"""Member of the ASGI scope: the gateway's own name for the request, which its decision has, too."""


class Routes:
    """Handlers by path and method; ``ready`` tells whether requests should be sent here."""

    def __init__(self, parts: GatewayParts, stack: Layers, ready: Callable[[], bool]) -> None:
        self._fleet = fleet = parts.context.fleet
        self._clock, self._wall_clock = parts.context.clock, parts.wall_clock
        answer: Handler = partial(self._answer, stack.answer)
        self._methods: Mapping[str, Mapping[str, Handler]] = {
            **{endpoint: {"POST": answer} for endpoint in Endpoint},
            Endpoint.RESPONSES: {"POST": answer, "GET": upgrade_required},
            ROUTE_PATH: {"POST": partial(self._answer, stack.route)},
            MODELS_PATH: dict.fromkeys(
                ("GET", "HEAD"), ModelListing(fleet, partial(listed_model, fleet), allowed_models)
            ),
            INPUT_TOKENS_PATH: {"POST": partial(self._answer, stack.count)},
            COMPACT_PATH: {"POST": refuse_compaction},
            OPENAPI_PATH: {"GET": serves_document(*(() if parts.batches is None else (BATCHES_CHAPTER,)))},
            **Health(ready).routes(),
        }
        self._kept = () if parts.batches is None else batch_handlers(parts.batches(stack.bodies))
        self._stored = StoredResponses(None if parts.turns is None else parts.turns.histories, self._stores)

    def handler(self, scope: Scope, reply: Reply) -> Handler:
        """Return what answers a request. ApiError 404, 405."""
        path, method = scope["path"], scope["method"]
        methods = self._methods.get(path)
        if methods is None and path.startswith(MODELS_PATH + "/"):
            methods = self._methods[MODELS_PATH]
        if methods is None:
            methods = self._stored.handler(path)
        if methods is None and self._kept:
            methods = next(filter(None, (find(path) for find in self._kept)), None)
        if methods is None:
            meant = meant_path(path, self._methods)
            reply.path = meant or path
            raise no_such_path(path, meant)
        if method not in methods:
            raise ApiError(405, f"{shown(path)} takes no {shown(method)}.", headers={"allow": ", ".join(methods)})
        return methods[method]

    async def _answer(self, layer: Layer, scope: Scope, receive: Receive, reply: Reply) -> None:
        """Have a layer answer a request that has just come."""
        named = request_id(scope["headers"])
        trace = scope[TRACE] = DecisionTrace(scope[OWN_NAME], self._wall_clock(), "", scope["path"], request_id=named)
        arrival = Arrival(scope, receive, reply, trace, self._clock())
        tenant = admitted_request(scope).tenant
        await layer(Request(UNREAD, NO_MODEL, tenant, arrival, client=reply.native))

    def _stores(self) -> bool:
        """Whether any model's responses are stored."""
        return any(allowance(model.declared).history for model in self._fleet.models())
