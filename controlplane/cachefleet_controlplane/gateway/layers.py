"""The way of a request through the gateway: layers, each of which has the next one answer it.

Read this first. A client's POST for an answer goes through all of them, from the outside in:

    account    account/   what it cost and what became of it, however it ends
    admit      admit/     its tenant's limits, its body, its model; passed on where another control plane serves that
    hold       admit/     until its model has a ready worker, where it has none and the pool says so
    comment    admit/     comments to a stream that waits for its first token, where pool or header says so
    converse   converse/  its turn in a conversation
    know       know/      its prompt's length and block keys; the body that a worker is sent
    retry      retry/     each attempt is placed (``place/``) and sent (``send/``) anew
    picker     picker/    in its place, and without a turn, for requests that Envoy sends

Each takes a ``Request`` and replaces it by one that says more. The answer goes to the client event by event from the
innermost layer, so the outer ones return nothing: what became of it is noted in the request's ``DecisionTrace``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from cachefleet_controlplane.capacity.pool_reuse import PoolReuses
from cachefleet_controlplane.gateway.account.hot_observer import HotObserver
from cachefleet_controlplane.gateway.account.lost_hits import LostHits
from cachefleet_controlplane.gateway.account.prompt_losses import PromptLosses
from cachefleet_controlplane.gateway.account.request_account import AccountLayer, Record, RequestAccount
from cachefleet_controlplane.gateway.account.settled_requests import SettledRequests, TenantAnswers
from cachefleet_controlplane.gateway.account.shortfall_records import Shortfalls
from cachefleet_controlplane.gateway.admit.admit_layer import AdmitLayer
from cachefleet_controlplane.gateway.admit.cold_start import HELD_SHARE, ColdStartLayer, ColdStarts
from cachefleet_controlplane.gateway.admit.keep_alive import KeepAliveLayer
from cachefleet_controlplane.gateway.admit.model_lookup import ModelLookup
from cachefleet_controlplane.gateway.admit.passed_requests import OtherControlPlanes, PassedRequests
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds, RequestBodies
from cachefleet_controlplane.gateway.admit.tenant_admission import AdmissionMiddleware
from cachefleet_controlplane.gateway.batches.batch_routes import BatchRoutes
from cachefleet_controlplane.gateway.converse.converse_layer import ConverseLayer
from cachefleet_controlplane.gateway.converse.turns import Turns
from cachefleet_controlplane.gateway.dry_run import Explainer, RouteLayer, parse_dry_run
from cachefleet_controlplane.gateway.know.prompt_lookup import KnowLayer, PromptLookup
from cachefleet_controlplane.gateway.picker.picked_exchange import picked_exchange, without_ids
from cachefleet_controlplane.gateway.request.request import Layer, Request
from cachefleet_controlplane.gateway.response_resources import count, parse_count
from cachefleet_controlplane.gateway.responses_socket.create_event import memory_of, parser_of
from cachefleet_controlplane.gateway.retry.exchange import exchange
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.history.cache_history import CacheHistory
from cachefleet_controlplane.history.recorded_requests import RecordedRequests
from cachefleet_controlplane.pools.inference_objectives import InferenceObjectives


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """What the layers share; ``record`` takes the records of decisions."""

    context: GatewayContext
    lookup: PromptLookup
    admission: AdmissionMiddleware
    record: Record
    bounds: GatewayBounds
    turns: Turns | None = None
    """None where no conversation is kept."""
    hot: HotObserver | None = None
    history: CacheHistory = field(default_factory=CacheHistory)
    recorded: RecordedRequests | None = None
    prompts: PromptLosses = field(default_factory=PromptLosses)
    reuses: PoolReuses | None = None
    """None where no hit curve is made."""
    contracts: TenantAnswers | None = None
    objectives: InferenceObjectives | None = None
    wall_clock: Callable[[], float] = time.time
    others: OtherControlPlanes = field(default_factory=OtherControlPlanes)
    batches: Callable[[RequestBodies], BatchRoutes] | None = None
    """Returns what answers for batches and their files; None where none are served."""


@dataclass(frozen=True, slots=True)
class Layers:
    """What answers the requests that have a record or an account of their own."""

    answer: Layer
    """A request that a worker answers."""
    route: Layer
    """``POST /v1/route``."""
    count: Layer
    """``POST /v1/responses/input_tokens``."""
    explain: Explainer
    bodies: RequestBodies
    passed: PassedRequests | None
    """None where no other control plane is known."""


def layers(parts: GatewayParts) -> Layers:
    """Stack the layers, from the inside out."""
    context, clock = parts.context, parts.context.clock
    models = ModelLookup(context.fleet, None if parts.turns is None else parts.turns.histories, memory_of)
    bodies, account = RequestBodies(parts.bounds), _account(parts)
    passed = _passed(parts, bodies) if parts.others.urls else None
    admit = partial(AdmitLayer, bodies, models, clock=clock, objectives=parts.objectives, passed=passed)

    know = partial(KnowLayer, parts.lookup, _noting(parts), clock=clock)
    converse = ConverseLayer(context.fleet, parts.turns, memory_of, know(partial(exchange, context)))
    picks = partial(_pick, converse, know(partial(picked_exchange, replace(context, max_attempts=1))))
    hold = ColdStartLayer(_cold_starts(parts), partial(_by_sender, converse, picks))
    answer = AccountLayer(account, admit(parser_of, KeepAliveLayer(hold, memory_of), counts=True), traced=True)

    route = RouteLayer(context, parts.lookup, converse.whole, parts.prompts.lint)
    return Layers(
        answer,
        AccountLayer(account, admit(lambda _: parse_dry_run, route)),
        AccountLayer(account, admit(lambda _: parse_count, partial(count, parts.lookup, converse.whole))),
        Explainer(context, route, models, parts.admission, wall_clock=parts.wall_clock),
        bodies,
        passed,
    )


def _passed(parts: GatewayParts, bodies: RequestBodies) -> PassedRequests:
    context = parts.context
    return PassedRequests(parts.others, context.fleet, context.upstream, bodies, context.metrics)


def _by_sender(answer: Layer, picks: Layer, request: Request) -> Coroutine[Any, Any, None]:
    """Have the gateway answer a request, or pick where Envoy sends it."""
    return answer(request) if request.client is None or request.client.pick is None else picks(request)


async def _pick(converse: ConverseLayer, know: Layer, request: Request) -> None:
    """Have Envoy send a request, with the stored conversation that it continues."""
    await know(without_ids(await converse.whole(request)))


def _cold_starts(parts: GatewayParts) -> ColdStarts:
    context, body_bytes = parts.context, parts.bounds.buffered_bytes // HELD_SHARE
    places = context.queue.places
    return ColdStarts(context.fleet, context.metrics, places=places, body_bytes=body_bytes, clock=context.clock)


def _account(parts: GatewayParts) -> RequestAccount:
    context = parts.context
    shortfalls = Shortfalls(context.fleet, parts.admission.salt_version)
    lost = LostHits(context.fleet, shortfalls, parts.hot.served if parts.hot else None, parts.prompts, parts.reuses)
    wall, contracts = parts.wall_clock, parts.contracts
    settled = SettledRequests(context, parts.history, parts.admission.used, wall=wall, contracts=contracts)
    return RequestAccount(context, parts.record, shortfalls, lost, settled, recorded=parts.recorded)


def _noting(parts: GatewayParts) -> Callable[[Request], None]:
    """Note the shapes of prompts, and hot prefixes where they are tracked."""
    prompts, hot = parts.prompts, parts.hot

    def note(request: Request) -> None:
        prompts.note(request)
        if request.told:
            prompts.telling(request)
        if hot is not None:
            hot.note(request)

    return note
