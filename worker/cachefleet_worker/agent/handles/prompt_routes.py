"""``POST /v1/handles`` and ``POST /v1/continue`` on the agent's port (docs/continue.md)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Protocol

import msgspec
from aiohttp import web

from cachefleet_core.continuation import (
    CONTINUE_PATH,
    HANDLES_PATH,
    ContinueRequest,
    HandleRequest,
    RefusalCode,
    RequestError,
    read_request,
)
from cachefleet_worker.agent import auth
from cachefleet_worker.agent.handles.continuation import Limits, mint, plan, told
from cachefleet_worker.agent.handles.continuation_relay import Relay, UpstreamError
from cachefleet_worker.agent.handles.prompt_handles import Handles, RefusedError
from cachefleet_worker.agent.metrics import AgentMetrics

log = logging.getLogger(__name__)

_RETRY_AFTER: Final = "1"
_UPSTREAM_STATUS: Final = {"generate_not_served": 501}
Answer = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]


class EngineAvailability(Protocol):
    """The engine's limits and availability, as the routes need them."""

    @property
    def limits(self) -> Limits: ...

    @property
    def closed(self) -> str:
        """Why prompts are refused, as a code; "" where they are accepted."""
        ...


class PromptRoutes:
    """The two routes; at most ``requests`` requests in flight."""

    def __init__(
        self,
        handles: Handles,
        relay: Relay,
        availability: EngineAvailability,
        metrics: AgentMetrics,
        *,
        key: str,
        requests: int,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._handles = handles
        self._relay = relay
        self._availability = availability
        self._metrics = metrics
        self._key = key
        self._requests = requests
        self._clock = clock
        self.under_way = 0

    def add_to(self, app: web.Application) -> None:
        """Register both routes on the agent's application."""
        app.router.add_post(HANDLES_PATH, self._route("handles", self._keep))
        app.router.add_post(CONTINUE_PATH, self._route("continue", self._continue))

    def _route(self, name: str, answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            outcome, response = "abandoned", None
            self.under_way += 1
            try:
                outcome, response = await self._answered(request, answer)
            finally:
                self.under_way -= 1
                self._metrics.continues.labels(name, outcome).inc()
            return response

        return handle

    async def _answered(self, request: web.Request, answer: Answer) -> tuple[str, web.StreamResponse]:
        """The outcome, a code from a fixed set, and the response."""
        refused = self._shut(request)
        if refused is not None:
            return refused
        try:
            response = await answer(request, await request.read())
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "body_too_large", f"the body is over {request.client_max_size} bytes")
        except RequestError as error:
            return _error(400, "bad_request", str(error))
        except RefusedError as error:
            if error.code is RefusalCode.HANDLE_CORRUPT:
                log.warning("prefix cache: restore failed; dropping entry, full prefill")
            return _error(409, error.code.value, str(error))
        except UpstreamError as error:
            return _error(_UPSTREAM_STATUS.get(error.code, 502), error.code, str(error))
        return ("ok" if response.status < 400 else "engine"), response

    def _shut(self, request: web.Request) -> tuple[str, web.Response] | None:
        """A refusal decided before the body is read; None where the request may proceed."""
        reason = auth.refusal(request.headers, self._key)
        if reason:
            message = "this needs the worker key in X-Cachefleet-Token or Authorization: Bearer"
            return _error(403 if reason == "no_worker_key" else 401, reason, message)
        if self._availability.closed:
            return _error(503, self._availability.closed, "this worker takes no prompts now")
        if self.under_way > self._requests:
            return _error(503, "busy", f"{self._requests} requests are under way")
        return None

    async def _keep(self, _request: web.Request, body: bytes) -> web.Response:
        now = self._clock()
        entry = mint(read_request(body, HandleRequest), self._handles, self._availability.limits, now)
        return _json(msgspec.json.encode(told(entry, now)), 201)

    async def _continue(self, request: web.Request, body: bytes) -> web.StreamResponse:
        wanted = read_request(body, ContinueRequest)
        return await self._relay.run(plan(wanted, self._handles, self._availability.limits, self._clock()), request)


def _json(content: bytes, status: int) -> web.Response:
    return web.Response(body=content, status=status, content_type="application/json")


def _error(status: int, code: str, message: str) -> tuple[str, web.Response]:
    response = _json(msgspec.json.encode({"error": {"code": code, "message": message}}), status)
    if status == 503:
        response.headers["Retry-After"] = _RETRY_AFTER
    return code, response
