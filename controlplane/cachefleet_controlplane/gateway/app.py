"""The routes of the gateway, as a raw ASGI application."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import msgspec

from cachefleet_controlplane.gateway.asgi import (
    JSON,
    ClientGoneError,
    Receive,
    Reply,
    Scope,
    Send,
    read_body,
    while_present,
)
from cachefleet_controlplane.gateway.decision import CLIENT_GONE_STATUS, Trace, decision_body, decision_headers
from cachefleet_controlplane.gateway.errors import ApiError
from cachefleet_controlplane.gateway.placing import Placer
from cachefleet_controlplane.gateway.request import (
    READ_ERRORS,
    Ask,
    Endpoint,
    Fields,
    parse,
    parse_fields,
    understand,
)
from cachefleet_controlplane.gateway.serve import RETRY_AFTER_SECONDS, Exchange, Parts
from cachefleet_controlplane.store.records import DecisionRecord
from cachefleet_controlplane.views import ServedModel

logger = logging.getLogger(__name__)

ROUTE_PATH: Final = "/v1/route"
MODELS_PATH: Final = "/v1/models"
OWNER: Final = "cachefleet"

_endpoint = msgspec.json.Decoder(Endpoint)
Record = Callable[[DecisionRecord], None]
Handler = Callable[[Scope, Receive, Reply], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayBounds:
    """Bytes and seconds of a request's body, how many requests may be under way, and seconds a client may not read."""

    body_bytes: int
    body_seconds: float
    requests: int
    send_seconds: float = 120.0


class Gateway:
    """OpenAI's API in front of a fleet. Call ``drain`` to refuse what is new while the rest ends."""

    def __init__(
        self,
        parts: Parts,
        placer: Placer,
        *,
        record: Record,
        bounds: GatewayBounds,
        wall_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(12),
    ) -> None:
        self._parts = parts
        self._placer = placer
        self._record = record
        self._bounds = bounds
        self._wall_clock = wall_clock
        self._new_id = new_id
        self._draining = False
        self.under_way = 0
        self._routes: Mapping[str, Mapping[str, Handler]] = {
            Endpoint.CHAT: {"POST": self._generate},
            Endpoint.COMPLETIONS: {"POST": self._generate},
            ROUTE_PATH: {"POST": self._route},
            MODELS_PATH: {"GET": self._models, "HEAD": self._models},
        }

    def drain(self) -> None:
        """From now on new requests get 503, and connections are closed after the answer under way."""
        self._draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the gateway serves no {scope['type']}")
        reply = Reply(send, seconds=self._bounds.send_seconds)
        self.under_way += 1
        self._parts.metrics.request_started()
        try:
            await self._serve(scope, receive, reply)
        except ClientGoneError:
            self._parts.metrics.client_gone()
        finally:
            self.under_way -= 1
            self._parts.metrics.request_ended()

    async def _serve(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        try:
            self._admit()
            await self._handler(scope)(scope, receive, reply)
        except ApiError as error:
            await reply.error(error)
        except ClientGoneError:
            raise
        except Exception:  # the root of a request's task: one that breaks takes no other with it
            logger.exception("a request failed unexpectedly", extra={"path": scope["path"]})
            self._parts.metrics.task_error("gateway")
            if not reply.started:
                await reply.error(ApiError(500, "The gateway failed."))

    def _admit(self) -> None:
        retry: Mapping[str, str] = {"retry-after": str(RETRY_AFTER_SECONDS)}
        if self._draining:
            raise ApiError(503, "This gateway is shutting down.", headers={**retry, "connection": "close"})
        if self.under_way > self._bounds.requests:
            raise ApiError(503, "Too many requests are under way.", headers=retry)

    def _handler(self, scope: Scope) -> Handler:
        path, method = scope["path"], scope["method"]
        if path.startswith(MODELS_PATH + "/"):
            path = MODELS_PATH
        methods = self._routes.get(path)
        if methods is None:
            raise ApiError(404, f"There is no {scope['path']} here.")
        if method not in methods:
            raise ApiError(405, f"{path} takes no {method}.", headers={"allow": ", ".join(methods)})
        return methods[method]

    async def _generate(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        began = self._parts.clock()
        endpoint = Endpoint(scope["path"])
        trace = Trace(id=self._new_id(), at=self._wall_clock(), model="", endpoint=endpoint)
        with self._accounted(trace, reply):
            ask = parse(await self._body(scope, receive), endpoint)
            work = self._answer(ask, scope, reply, trace, began)
            if not await while_present(work, receive, reply):
                raise ClientGoneError

    async def _answer(self, ask: Ask, scope: Scope, reply: Reply, trace: Trace, began: float) -> None:
        trace.model = self._placer.find(ask.model).name
        placing = await self._placer.place(ask)
        await Exchange(self._parts, placing, reply=reply, trace=trace, began=began).run(scope["headers"])

    async def _route(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        trace = Trace(id=self._new_id(), at=self._wall_clock(), model="", endpoint=ROUTE_PATH)
        with self._accounted(trace, reply):
            fields = parse_fields(await self._body(scope, receive))
            ask = understand(fields, _endpoint_of(fields))
            if not await while_present(self._decide(ask, reply, trace), receive, reply):
                raise ClientGoneError

    async def _decide(self, ask: Ask, reply: Reply, trace: Trace) -> None:
        """The decision alone: nothing is sent, so nothing counts as under way."""
        trace.model = self._placer.find(ask.model).name
        placing = await self._placer.place(ask)
        decision = trace.decision = placing.decide()
        body = decision_body(trace.id, ask, decision, placing.rendering)
        await reply.whole(200, [JSON, *decision_headers(trace.id, decision)], body)

    async def _models(self, scope: Scope, _: Receive, reply: Reply) -> None:
        name = scope["path"].removeprefix(MODELS_PATH).removeprefix("/")
        if name:
            card: object = _card(self._placer.find(name))
        else:
            card = {"object": "list", "data": [_card(model) for model in self._parts.fleet.models()]}
        await reply.whole(200, [JSON], msgspec.json.encode(card))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        return await read_body(scope, receive, limit=self._bounds.body_bytes, seconds=self._bounds.body_seconds)

    @contextmanager
    def _accounted(self, trace: Trace, reply: Reply) -> Iterator[None]:
        """Settle the accounts of a request however it ends, with the status its client is told."""
        try:
            yield
        except ClientGoneError:
            raise
        except Exception as error:
            trace.status = error.status if isinstance(error, ApiError) else 500
            raise
        finally:
            self._account(trace, reply)

    def _account(self, trace: Trace, reply: Reply) -> None:
        if reply.started:
            trace.status = reply.status
        metrics, decision = self._parts.metrics, trace.decision
        metrics.request(model=trace.model, endpoint=trace.endpoint, status=trace.status or CLIENT_GONE_STATUS)
        record = trace.record()
        if decision is None or record is None:
            return
        metrics.decision(
            policy=decision.policy, verdict=decision.verdict, knowledge=decision.knowledge, reason=decision.reason
        )
        if trace.ttft_seconds is not None:
            metrics.first_token(model=trace.model, seconds=trace.ttft_seconds)
        if trace.usage is not None:
            metrics.tokens(
                model=trace.model,
                prompt=trace.usage.prompt_tokens,
                predicted=decision.predicted_tokens,
                cached=trace.usage.cached_tokens,
            )
        self._record(record)


def _endpoint_of(fields: Fields) -> Endpoint:
    """The endpoint that a question for a decision is about: named, or told by its body."""
    named = fields.pop("endpoint", None)
    if named is None:
        return Endpoint.CHAT if "messages" in fields else Endpoint.COMPLETIONS
    try:
        return _endpoint.decode(named)
    except READ_ERRORS as error:
        allowed = " or ".join(Endpoint)
        raise ApiError(400, f"`endpoint` must be {allowed}.", param="endpoint") from error


def _card(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "max_model_len": model.max_model_len,
    }
