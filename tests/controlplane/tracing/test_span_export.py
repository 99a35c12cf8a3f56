"""Spans on their way to a collector: batches, a full queue, a collector that is not there, the end."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from cachefleet_controlplane.tracing import span_export
from cachefleet_controlplane.tracing.span import Kind, Span, SpanEvent
from cachefleet_controlplane.tracing.span_export import SpanBatches, described, make_tracer
from cachefleet_controlplane.tracing.trace_context import TraceContext
from cachefleet_controlplane.tracing.tracing_settings import TracingSettings
from tests.controlplane.tracing.collector import collecting, values
from tests.controlplane.waiting import until

SETTINGS = TracingSettings(queue=8, batch=4, delay=10)
NEVER = TracingSettings(queue=8, batch=8, delay=300_000)


def span(number: int = 1, **changes: object) -> Span:
    return Span(**({"name": "chat", "trace_id": 7, "span_id": number, "began": 1.5, "ended": 2.5} | changes))  # type: ignore[arg-type]


class Counts(Counter[str]):
    def count(self, outcome: str, spans: int) -> None:
        self[outcome] += spans


async def test_spans_come_to_a_collector_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=a")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
        counts = Counts()
        tracer = make_tracer(SETTINGS, counts.count)
        own = span(1, kind=Kind.SERVER, parent_id=9, attributes={"a": 1, "b": "c"}, events=[SpanEvent("first", 2.0)])
        tracer.end([own, span(2, kind=Kind.CLIENT, parent_id=1, failed=True)])
        await until(lambda: counts["exported"] == 2)
        await tracer.close()
        first, second = collector.spans()
        assert (first.name, first.start_time_unix_nano, first.end_time_unix_nano) == (
            "chat",
            1_500_000_000,
            2_500_000_000,
        )
        assert (first.trace_id, first.span_id, first.parent_span_id) == (
            (7).to_bytes(16),
            (1).to_bytes(8),
            (9).to_bytes(8),
        )
        assert (first.kind, second.kind) == (first.SPAN_KIND_SERVER, first.SPAN_KIND_CLIENT)
        assert values(first.attributes) == {"a": 1, "b": "c"}
        assert [(event.name, event.time_unix_nano) for event in first.events] == [("first", 2_000_000_000)]
        assert (first.status.code, second.status.code) == (
            first.status.STATUS_CODE_UNSET,
            second.status.STATUS_CODE_ERROR,
        )
        assert collector.headers[0]["x-team"] == "a"
        told = collector.resource()
        assert (told["service.name"], told["deployment.environment"]) == ("cachefleet-controlplane", "test")


def test_the_service_has_the_name_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert described().attributes["service.name"] == "mine"


class Stuck(SpanExporter):
    """Takes one batch, and does not come back until it is shut down."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.began, self._over = asyncio.Event(), False
        self._loop = loop

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._loop.call_soon_threadsafe(self.began.set)
        while not self._over:
            time.sleep(0.001)
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self._over = True


async def test_a_full_queue_drops_whole_requests_and_counts_them() -> None:
    counts = Counts()
    batches = SpanBatches(stuck := Stuck(asyncio.get_running_loop()), NEVER, counts.count, Resource({}))
    batches.submit([span(n) for n in range(1, 6)])
    batches.submit([span(n) for n in range(6, 10)])
    batches.submit([span(n) for n in range(10, 13)])
    assert counts == {"dropped": 4}
    await stuck.began.wait()
    batches.submit([span(13)])
    assert counts == {"dropped": 4}
    stuck.shutdown()
    await batches.close()
    assert counts == {"dropped": 4, "failed": 9}


async def test_the_end_does_not_wait_for_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "FLUSH_SECONDS", 0.05)
    counts = Counts()
    batches = SpanBatches(Stuck(asyncio.get_running_loop()), NEVER, counts.count, Resource({}))
    batches.submit([span()])
    async with asyncio.timeout(30):
        await batches.close()
    await until(lambda: counts["failed"] == 1)  # its thread has nothing more to say, in another test


async def test_what_waits_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.url + "/v1/traces")
        tracer = make_tracer(NEVER, Counts().count)
        tracer.end([span()])
        assert not collector.asked
        await tracer.close()
        assert len(collector.spans()) == 1


async def test_nobody_waits_for_a_collector_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    counts = Counts()
    tracer = make_tracer(SETTINGS, counts.count)
    for number in range(1, 101):
        tracer.end([span(number)])
    assert counts["dropped"] >= 100 - SETTINGS.queue - SETTINGS.batch * 2
    await until(lambda: sum(counts.values()) == 100)
    await tracer.close()
    assert not counts["exported"]
    assert [record.name for record in caplog.records] == [span_export.__name__]


async def test_a_collector_that_fails_is_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        collector.status, counts = 400, Counts()
        tracer = make_tracer(SETTINGS, counts.count)
        for number in range(1, 4):
            tracer.end([span(number)])
            await until(lambda: counts["failed"] == number)  # noqa: B023 - waited for at once
        collector.status = 200
        tracer.end([span(4)])
        await until(lambda: counts["exported"] == 1)
        await tracer.close()
    assert [record.message for record in caplog.records if "traces" in record.message] == [
        "traces cannot be sent: the collector does not take them; requests go on without",
        "traces are sent again",
    ]
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


@pytest.mark.parametrize(
    ("sampler", "argument", "parent", "sampled"),
    [
        ("", "", None, True),
        ("", "", TraceContext(1, 1, sampled=False), False),
        ("always_on", "", TraceContext(1, 1, sampled=False), True),
        ("always_off", "", TraceContext(1, 1, sampled=True), False),
        ("parentbased_traceidratio", "0", None, False),
        ("parentbased_traceidratio", "0", TraceContext(1, 1, sampled=True), True),
        ("traceidratio", "0", TraceContext(1, 1, sampled=True), False),
        ("traceidratio", "1", TraceContext(1, 1, sampled=False), True),
    ],
)
async def test_the_standard_samplers_decide(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, parent: TraceContext | None, *, sampled: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler or "parentbased_always_on")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    tracer = make_tracer(NEVER, Counts().count)
    headers = [parent.header()] if parent else []
    begun, _ = tracer.begin(headers, arrived=0.0, unix_offset=0.0)
    assert (begun is not None) == sampled
    await tracer.close()
