"""The outermost layer: accounts for requests as they end, in metrics, the tenant's usage, the decision's record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cachefleet_controlplane.gateway.account.left_answers import LeftAnswers
from cachefleet_controlplane.gateway.account.lost_hits import LostHits
from cachefleet_controlplane.gateway.account.request_spans import failed, request_spans
from cachefleet_controlplane.gateway.account.settled_requests import SettledRequests
from cachefleet_controlplane.gateway.account.shortfall_records import Shortfalls, find_surplus
from cachefleet_controlplane.gateway.admit.tenant_admission import ARRIVED, AdmittedRequest, admitted_request
from cachefleet_controlplane.gateway.answers_under_way import restarting
from cachefleet_controlplane.gateway.request.decision_trace import DecisionTrace
from cachefleet_controlplane.gateway.request.request import Arrival, Layer, Request
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.send.outcome import ENDS, Outcome
from cachefleet_controlplane.history.recorded_requests import RecordedRequest, RecordedRequests
from cachefleet_controlplane.routing.cache_shortfall import Surplus
from cachefleet_controlplane.store.decision_log import LaterRecord
from cachefleet_controlplane.store.decision_records import AttemptRecord, EndedBy
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Reply

Record = Callable[[LaterRecord], None]


_WHOLE: Final = frozenset({Outcome.ANSWERED, Outcome.FINISHED})
"""Outcomes of a last attempt whose worker has sent all of its answer."""
_OURS: Final = frozenset({Outcome.STOPPED, Outcome.RESTARTED})


def ended_by(attempts: Sequence[AttemptRecord], error: BaseException | None) -> EndedBy | None:
    """Who ended an answer before it was whole, after these attempts; None for nobody. ``error`` ended the request."""
    last = attempts[-1].outcome if attempts else None
    if last in _WHOLE:
        return None
    if isinstance(error, ClientGoneError):
        return EndedBy.CLIENT
    if isinstance(error, asyncio.CancelledError) or last in _OURS:
        return EndedBy.GATEWAY
    return EndedBy.WORKER if last in ENDS else None


class AccountLayer:
    """Accounts for the requests that ``answer`` answers; ``traced``: also as spans, where traces are on."""

    def __init__(self, account: RequestAccount, answer: Layer, *, traced: bool = False) -> None:
        self._account = account
        self._answer = answer
        self._traced = traced

    async def __call__(self, request: Request) -> None:
        """Answer a request that has just come. ApiError as ``answer``."""
        arrival = request.arrival
        if self._traced:
            self._account.begin_span(arrival)
        try:
            await self._answer(request)
        except BaseException as error:
            self._account.ended(arrival, error)
            raise
        self._account.ended(arrival, None)


class RequestAccount:
    """``record`` takes the records of decisions; ``recorded`` keeps requests to simulate with."""

    def __init__(
        self,
        context: GatewayContext,
        record: Record,
        shortfalls: Shortfalls,
        lost: LostHits,
        settled: SettledRequests,
        *,
        recorded: RecordedRequests | None = None,
    ) -> None:
        self._context = context
        self._record = record
        self._shortfalls = shortfalls
        self._lost = lost
        self._settled = settled
        self._recorded = recorded
        self._left = LeftAnswers(context.upstream, context.credentials)

    def begin_span(self, arrival: Arrival) -> None:
        """Decide whether a request is traced, and have its workers continue the trace; to be called first."""
        trace, scope, began = arrival.trace, arrival.scope, arrival.began
        if self._context.tracer is not None:
            trace.span, scope["headers"] = self._context.tracer.begin(
                scope["headers"],
                arrived=scope.get(ARRIVED, began),
                unix_offset=trace.at - began,
                server=scope.get("server"),
            )

    def ended(self, arrival: Arrival, error: BaseException | None) -> None:
        """Account for a request that ``error`` has ended, if any; a moment later, where its worker is asked what was
        made.
        """
        trace = arrival.trace
        if trace.passed_to:  # who has answered it accounts for it
            self._end_span(trace, arrival.reply)
            return
        if isinstance(error, Exception) and not isinstance(error, ClientGoneError):
            trace.status = error.status if isinstance(error, ApiError) else 500
        elif isinstance(error, asyncio.CancelledError) and self._context.under_way.stopped:
            trace.status = restarting().status
        trace.ended_by = ended_by(trace.attempts, error)
        settle = partial(self._settle, trace, arrival.reply, admitted_request(arrival.scope))
        if not self._left.later(trace, settle):
            settle()

    def _settle(self, trace: DecisionTrace, reply: Reply, admitted: AdmittedRequest) -> None:
        if reply.started:
            trace.status = reply.status
        trace.shortfall = self._shortfalls.find_shortfall(trace)
        self._shortfalls.take_evidence(trace)
        answered, judged = self._lost.ended(trace)
        surplus = find_surplus(trace)
        if answered is not None and (surplus or trace.shortfall is not None):
            answered.shortfall_tokens = trace.shortfall.tokens if trace.shortfall else 0
            answered.surplus_tokens = sum(surplus.values())
        if failed(trace):
            self._settled.fail(trace)
        if self._recorded is not None:
            _keep(self._recorded, trace)
        used, key = admitted.settle(trace, self._settled.charge), admitted.budget
        self._settled.add(trace, admitted.tenant.name, used, answered, judged=judged, key=key)
        if trace.answered is not None:
            self._count(trace, surplus)
            self._record(trace)
        self._end_span(trace, reply)

    def _end_span(self, trace: DecisionTrace, reply: Reply) -> None:
        if trace.span is not None and self._context.tracer is not None:
            trace.status = reply.status if reply.started else trace.status
            self._context.tracer.end(request_spans(trace, trace.span, ended=self._context.clock()))

    def _count(self, trace: DecisionTrace, surplus: Mapping[Surplus, int]) -> None:
        """What few requests count, and histograms."""
        metrics = self._context.metrics
        if trace.ttft_seconds is not None:
            metrics.first_token(model=trace.model, seconds=trace.ttft_seconds)
        if trace.shortfall is not None:
            metrics.shortfall(trace.shortfall.cause, trace.shortfall.tokens)
        for cause, tokens in surplus.items():
            metrics.surplus(cause, tokens)


def _keep(recorded: RecordedRequests, trace: DecisionTrace) -> None:
    """Keep a request that one worker has answered and whose engine tells what it served from cache; no other."""
    usage, decision = trace.usage, trace.answered
    if not recorded.on or decision is None or usage is None or not trace.attempts:
        return
    if usage.cached_tokens is None or not trace.single or not decision.pool:
        return
    recorded.add(
        RecordedRequest(
            trace.at,
            decision.pool,
            trace.keys,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.completion_tokens or 0,
            trace.ttft_seconds,
            (trace.queued_seconds or 0.0) + decision.queue_seconds,
        )
    )
