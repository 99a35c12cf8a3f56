"""One request that Envoy sends to a worker: placed as all are; the answer is followed as Envoy passes it on.

Envoy tries the chosen worker, then the fallbacks in order, and its answer goes to the client whatever it is: nothing is
sent a second time from here. So a gate's refusal would reach the client, and no threshold is sent along but 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final

from cachefleet_native import Pick, upstream_headers
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.request_info import THRESHOLD_FIELD
from cachefleet_controlplane.gateway.request.request import Request
from cachefleet_controlplane.gateway.retry.exchange import Exchange
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.retry_loop import unwrap
from cachefleet_controlplane.gateway.retry.retry_state_machine import Action
from cachefleet_controlplane.gateway.send.answers.usage import Usage
from cachefleet_controlplane.gateway.send.outcome import Outcome
from cachefleet_controlplane.gateway.send.worker_answer import Answer, AttemptResult
from cachefleet_controlplane.pools.source import address_of
from cachefleet_controlplane.routing.decision import Decision
from cachefleet_controlplane.transport.native_exchange import EXCHANGE
from cachefleet_controlplane.wire.http_exchange import ClientGoneError
from cachefleet_controlplane.wire.json_members import ZERO

TEST_SELECTION: Final = b"test-epp-endpoint-selection"
"""Header of the conformance tests: endpoints to choose among, of trusted tenants only."""


class PickedExchange(Exchange):
    """Has Envoy send one request; ``run`` returns once its answer has ended."""

    def __init__(self, context: GatewayContext, request: Request, pick: Pick) -> None:
        super().__init__(context, request)
        self._pick = pick
        self._arrival = request.arrival
        self._events: asyncio.Queue[bool] = asyncio.Queue()
        self._number = 0
        self._placement.more = (
            context.fallbacks
        )  # of the same pool: they take the same key, since the headers are the same
        subset = _subset(request, pick)
        if subset is not None:
            outside = context.fleet.outside(request.model.name, subset)
            self._progress = replace(self._progress, excluded=outside)

    async def run(self) -> None:
        """Answer the client, or have Envoy do it; to be called once."""
        try:
            await super().run()
        finally:
            if self._number:
                self._completions.forget(self._number)

    @property
    def _completions(self) -> Any:
        return self._arrival.scope[EXCHANGE].completions

    async def _send(self) -> Outcome:
        chosen = unwrap(self._placement.chosen)
        headers = self._begin(chosen)
        key = self._context.credentials.of(chosen.url)
        attempt = self._planner.next(self._progress)
        if attempt.threshold:
            attempt.changes = {**attempt.changes, THRESHOLD_FIELD: ZERO}
        self._filter = self._filter_of(chosen)
        self._number = self._completions.expect(self._events.put_nowait)
        named = [*self._trace.headers(chosen), *self._reply.names]
        try:
            self._pick.route(
                ",".join(_endpoints(chosen)),
                upstream_headers(headers, key=key, hooked=attempt.hooked),
                attempt.whole(),
                [(name.decode(), value) for name, value in named],
                self._filter.native,
                self._number,
            )
        except BrokenPipeError as error:
            raise ClientGoneError from error
        ended = await self._events.get()
        self._answering()
        return self._ended() if ended else self._first_event()

    def _answering(self) -> None:
        """An answer has begun: note its status, and who has not taken the request."""
        pick, reply = self._pick, self._reply
        reply.started, reply.status = True, pick.status
        chosen = unwrap(self._placement.chosen)
        endpoints = _endpoints(chosen)
        served = endpoints.index(pick.served) if pick.served in endpoints else 0
        self._opened = AttemptResult(Outcome.UNREACHABLE)
        for following in chosen.next[:served]:
            passed = unwrap(self._placement.chosen)
            self._context.blame(passed, Outcome.UNREACHABLE, excluded=True, retried=True)
            self._note_attempt(Outcome.UNREACHABLE)
            self._placement.chosen = following.made()
        if served:
            self._placement.move(unwrap(self._placement.chosen))

    def _first_event(self) -> Outcome:
        self._opened = AttemptResult(Outcome.FIRST_EVENT, answer=Answer(self._pick.status, (), b""))
        self._placement.first_token()
        return Outcome.FIRST_EVENT

    def _ended(self) -> Outcome:
        """The outcome of an answer that is whole."""
        pick = self._pick
        self._reply.ended = True
        if pick.unreached:
            return Outcome.UNREACHABLE
        status = pick.status
        outcome = Outcome.SERVER_ERROR if status >= 500 else Outcome.ANSWERED
        if status in {401, 403}:
            outcome = Outcome.KEY_REFUSED
        self._opened = AttemptResult(outcome, answer=Answer(status, (), b""))
        if outcome is Outcome.ANSWERED:
            self._exposed.ended()
        return outcome

    async def _relay(self) -> Outcome:
        """Follow a stream to its end."""
        self._transformer = transformer = self._filter
        self._trace.ttft_seconds = self._context.clock() - self._began
        self._forget()
        try:
            await self._events.get()
            self._reply.ended = True
            self._exposed.ended()
            return Outcome.FINISHED
        finally:  # also where Envoy has ended it before
            self._trace.usage = self._possible(transformer.usage)
            chosen = unwrap(self._placement.chosen)
            self._context.fingerprints.learn(chosen.url, transformer.fingerprint)

    async def _conclude(self, action: Action) -> None:
        if not self._reply.started:
            return await super()._conclude(action)
        usage = self._pick.usage
        if action is Action.DELIVER and usage is not None and self._pick.status == 200:
            self._trace.usage = self._possible(Usage(*usage))
        return None


def picked_exchange(context: GatewayContext, request: Request) -> Coroutine[Any, Any, None]:
    """Have Envoy answer a request whose prompt is known; ``context`` allows for one attempt."""
    request = context.affinity.applied(request)
    return PickedExchange(context, request, request.client.pick).run()


def without_ids(request: Request) -> Request:
    """Return a request that asks its worker for no token ids: nobody would go on with its answer."""
    return replace(request, info=replace(request.info, ids_wanted=False))


def _endpoints(chosen: Decision) -> list[str]:
    """Where Envoy may send a request, in order."""
    return [address_of(chosen.url), *(address_of(following.url) for following in chosen.next)]


def _subset(request: Request, pick: Pick) -> Sequence[str] | None:
    """The endpoints that may be chosen; None for all."""
    if request.tenant.trusted:
        values = [value for name, value in request.headers if name == TEST_SELECTION]
        if values:
            return [part.strip() for value in values for part in value.decode("latin-1").split(",")]
    return pick.subset
