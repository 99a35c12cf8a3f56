"""Builds the gateway: its bounds, what attempts share, what completes requests, and the tracer."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.gateway.admit.request_bodies import GatewayBounds
from cachefleet_controlplane.gateway.answers_under_way import AnswersUnderWay
from cachefleet_controlplane.gateway.engine_deaths.engine_deaths import EngineDeaths
from cachefleet_controlplane.gateway.handles.handles import Handles
from cachefleet_controlplane.gateway.handles.unseen_text import UnseenText
from cachefleet_controlplane.gateway.know.prompt_lookup import PromptLookup
from cachefleet_controlplane.gateway.know.render_cache import RenderCache
from cachefleet_controlplane.gateway.know.render_ladder import Renderers
from cachefleet_controlplane.gateway.know.renderer import Renderer
from cachefleet_controlplane.gateway.know.text_keys import Texts
from cachefleet_controlplane.gateway.place.key_affinity import KeyAffinity
from cachefleet_controlplane.gateway.place.request_queue import Queue
from cachefleet_controlplane.gateway.responses_socket.socket_limits import SocketLimits
from cachefleet_controlplane.gateway.retry.gateway_context import GatewayContext
from cachefleet_controlplane.gateway.retry.stalled_attempts import StalledAttempts
from cachefleet_controlplane.gateway.send.answers.system_fingerprints import Fingerprints
from cachefleet_controlplane.gateway.send.client import Upstream
from cachefleet_controlplane.gateway.send.credentials import Credentials
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.routing.decision import Knowledge
from cachefleet_controlplane.tracing.tracer import Tracer
from cachefleet_controlplane.tracing.tracing_settings import TracingSettingsError, tracing_settings
from cachefleet_controlplane.wire.cross_origin import AllowedOrigins
from cachefleet_controlplane.wiring.replica_bounds import ReplicaBounds
from cachefleet_controlplane.wiring.settings import Settings, SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """What may differ between gateways: bounds, caches, and the most that is learnt of prompts."""

    render_seconds: float = 30.0
    renderer_urls: Sequence[str] = ()
    queue_requests: int = 8
    max_attempts: int = 3
    fallbacks: int = 2
    knowledge: Knowledge = Knowledge.EXACT
    render_cache: RenderCache | None = None
    texts: Texts | None = None
    clock: Callable[[], float] = time.monotonic
    tracer: Tracer | None = None


def gateway_bounds(settings: Settings, bounds: ReplicaBounds) -> GatewayBounds:
    """Of bodies and answers."""
    return GatewayBounds(
        body_bytes=settings.request_max_bytes,
        body_seconds=settings.request_body_seconds,
        requests=settings.upstream_connections,
        buffered_bytes=settings.buffer_bytes,
        stall_seconds=bounds.stall_seconds,
    )


def allowed_origins(settings: Settings) -> AllowedOrigins:
    """Of browsers' pages that may ask."""
    return AllowedOrigins(settings.allowed_origins)


def socket_limits(settings: Settings) -> SocketLimits:
    """Of clients' WebSocket connections."""
    return SocketLimits(
        connections=settings.websocket_connections,
        memory_bytes=settings.continuation_history_bytes,
        all_memory_bytes=settings.buffer_bytes,
    )


def gateway_options(settings: Settings, *, tracer: Tracer | None) -> GatewayOptions:
    """What the gateway learns of prompts, and its bounds."""
    return GatewayOptions(
        render_seconds=settings.render_timeout_seconds,
        renderer_urls=settings.renderer_urls,
        queue_requests=settings.queue_requests,
        max_attempts=settings.max_attempts,
        fallbacks=settings.picker_fallbacks,
        knowledge=Knowledge(settings.knowledge),
        render_cache=RenderCache(),
        texts=Texts(secrets.token_bytes(32)),
        tracer=tracer,
    )


def gateway_context(
    fleet: Fleet, upstream: Upstream, credentials: Credentials, metrics: Metrics, options: GatewayOptions
) -> GatewayContext:
    """What the attempts of a request share: fleet, HTTP client, credentials, metrics and the queue for room."""
    queue = Queue(places=options.queue_requests, metrics=metrics, clock=options.clock)
    fleet.listen(queue.wake)
    return GatewayContext(
        fleet=fleet,
        upstream=upstream,
        credentials=credentials,
        metrics=metrics,
        fingerprints=Fingerprints(),
        queue=queue,
        stalled=StalledAttempts(fleet.troubles, clock=options.clock),
        deaths=EngineDeaths(upstream.ended, fleet.serves, metrics, clock=options.clock),
        under_way=AnswersUnderWay(),
        affinity=KeyAffinity(),
        max_attempts=options.max_attempts,
        fallbacks=options.fallbacks,
        tracer=options.tracer,
        clock=options.clock,
    )


def renderer_of(context: GatewayContext, options: GatewayOptions) -> Renderer:
    """The client that asks renderers and workers for a prompt's token ids or block keys."""
    return Renderer(
        context.upstream,
        context.credentials,
        metrics=context.metrics,
        timeout_seconds=options.render_seconds,
        cache=options.render_cache,
        dedicated=Renderers(options.renderer_urls),
    )


def prompt_lookup(
    context: GatewayContext,
    renderer: Renderer,
    options: GatewayOptions,
    *,
    salt_key: bytes,
    handles: Handles | None = None,
    unseen: UnseenText | None = None,
) -> PromptLookup:
    """What completes requests: salt, body for workers, token count and block keys."""
    return PromptLookup(
        context.fleet,
        renderer,
        salt_key=salt_key,
        texts=options.texts,
        knowledge=options.knowledge,
        handles=handles,
        unseen=unseen,
        clock=options.clock,
    )


def tracer_of(environment: Mapping[str, str], metrics: Metrics) -> Tracer | None:
    """The tracer that the OTEL_* variables ask for; None where traces are off. SettingsError."""
    try:
        settings = tracing_settings(environment)
        if settings is None:
            return None
        export = import_module("cachefleet_controlplane.tracing.span_export")
        made: Tracer = export.make_tracer(settings, metrics.trace_spans)
    except TracingSettingsError as error:
        raise SettingsError(error.lines) from error
    except ValueError as error:
        raise SettingsError([f"OTEL_EXPORTER_OTLP_*: {error}"]) from error
    return made
