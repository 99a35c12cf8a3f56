"""OpenTelemetry's sampler, batches and OTLP exporter; the only module that imports it.

Spans are handed over ended, with ids that were chosen while the request went on, so they are made as the read-only
values that exporters take, not by OpenTelemetry's own tracer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation import set_span_in_context

from cachefleet_controlplane.tracing.span import Kind, Span
from cachefleet_controlplane.tracing.trace_context import TraceContext
from cachefleet_controlplane.tracing.tracer import Sampler, Sink, Tracer
from cachefleet_controlplane.tracing.tracing_settings import TracingSettings

logger = logging.getLogger(__name__)

SERVICE: Final = "cachefleet-controlplane"
FLUSH_SECONDS: Final = 3.0
"""How long the last spans may take to be sent at the end."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
_KINDS: Final = {Kind.SERVER: SpanKind.SERVER, Kind.CLIENT: SpanKind.CLIENT, Kind.INTERNAL: SpanKind.INTERNAL}
_OK: Final = Status(StatusCode.UNSET)
_FAILED: Final = Status(StatusCode.ERROR)
_UNNAMED: Final = "unknown_service"

Count = Callable[[str, int], None]
"""Counts spans by what became of them: exported, failed or dropped."""


def make_tracer(settings: TracingSettings, count: Count) -> Tracer:
    """Return a tracer that exports by OTLP over HTTP. ValueError where a variable of the exporter cannot be used."""
    exporter = OTLPSpanExporter()
    # Each failed batch is told by CountingExporter, once, and not by all layers below at each try.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    resource = described()
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    return Tracer(sampler_of(provider), SpanBatches(exporter, settings, count, resource))


def described() -> Resource:
    """Return what spans say of this process: the standard variables, with names of ours where they give none."""
    told = Resource.create()
    own = {SERVICE_VERSION: version("cachefleet"), SERVICE_INSTANCE_ID: socket.gethostname()}
    if str(told.attributes.get(SERVICE_NAME, _UNNAMED)).startswith(_UNNAMED):
        told = told.merge(Resource({SERVICE_NAME: SERVICE}))
    return Resource(own).merge(told)


def sampler_of(provider: TracerProvider) -> Sampler:
    """Return the provider's sampler, which the standard variables choose, as a function."""
    sampler = provider.sampler

    def sampled(trace_id: int, parent: TraceContext | None) -> bool:
        context = None
        if parent is not None:
            flags = _SAMPLED if parent.sampled else _NOT_SAMPLED
            remote = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(remote))
        return sampler.should_sample(context, trace_id, "").decision is Decision.RECORD_AND_SAMPLE

    return sampled


class CountingExporter(SpanExporter):
    """Counts what ``exporter`` sent, and logs once that it cannot, and once that it can again."""

    def __init__(self, exporter: SpanExporter, count: Count) -> None:
        self._exporter = exporter
        self._count = count
        self._failing = False
        self.taken = 0
        """Spans that have left the queue."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; called by one thread."""
        self.taken += len(spans)
        result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            logger.warning("traces cannot be sent: the collector does not take them; requests go on without")
        if self._failing and not failed:
            logger.info("traces are sent again")
        self._failing = failed
        self._count("failed" if failed else "exported", len(spans))
        return result

    def shutdown(self) -> None:
        """End the exporter: what it waits for is given up."""
        self._exporter.shutdown()


class SpanBatches(Sink):
    """Spans on their way to ``exporter``, in batches, by a thread of their own; beyond the queue they are dropped."""

    def __init__(self, exporter: SpanExporter, settings: TracingSettings, count: Count, resource: Resource) -> None:
        self._exporter = CountingExporter(exporter, count)
        self._most = settings.queue
        self._count = count
        self._resource = resource
        self._scope = InstrumentationScope("cachefleet", version("cachefleet"))
        self._submitted = 0
        self._processor = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.queue,
            schedule_delay_millis=settings.delay,
            max_export_batch_size=settings.batch,
        )

    def submit(self, spans: Sequence[Span]) -> None:
        """Queue the spans of one request, all or none."""
        if self._submitted - self._exporter.taken + len(spans) > self._most:
            self._count("dropped", len(spans))
            return
        self._submitted += len(spans)
        for span in spans:
            self._processor.on_end(self._readable(span))

    async def close(self) -> None:
        """Send what waits; after FLUSH_SECONDS it is given up."""
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._processor.shutdown()  # type: ignore[no-untyped-call]
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(flushed.set)

        # A daemon, and no worker of an executor: the process does not wait for it at its exit.
        threading.Thread(target=flush, name="trace-flush", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_SECONDS):
                await flushed.wait()
        except TimeoutError:
            self._exporter.shutdown()
            logger.warning("the last traces could not be sent within %g s", FLUSH_SECONDS)

    def _readable(self, span: Span) -> ReadableSpan:
        parent = None
        if span.parent_id:
            remote = span.kind is Kind.SERVER
            parent = SpanContext(span.trace_id, span.parent_id, is_remote=remote, trace_flags=_SAMPLED)
        return ReadableSpan(
            span.name,
            SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED),
            parent,
            self._resource,
            span.attributes,
            [Event(event.name, timestamp=_nanoseconds(event.at)) for event in span.events],
            kind=_KINDS[span.kind],
            status=_FAILED if span.failed else _OK,
            start_time=_nanoseconds(span.began),
            end_time=_nanoseconds(span.ended),
            instrumentation_scope=self._scope,
        )


def _nanoseconds(unix_seconds: float) -> int:
    return int(unix_seconds * 1e9)
