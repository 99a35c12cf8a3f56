"""A collector of traces: takes OTLP over HTTP, and keeps what it is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span


@dataclass
class Collector:
    """``bodies`` are the requests as they came; while ``status`` is no 200 nothing is taken."""

    url: str = ""
    status: int = 200
    asked: int = 0
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.status == 200:
            self.bodies.append(await request.read())
            self.headers.append(dict(request.headers))
        return web.Response(status=self.status, content_type="application/x-protobuf")

    def spans(self) -> list[Span]:
        return [span for scope in self._scopes() for span in scope.spans]

    def resource(self) -> dict[str, object]:
        """What the last request says of the process."""
        parsed = ExportTraceServiceRequest.FromString(self.bodies[-1])
        return values(parsed.resource_spans[0].resource.attributes)

    def named(self, name: str) -> Span:
        return next(span for span in self.spans() if span.name == name)

    def _scopes(self) -> Iterator[ScopeSpans]:
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                yield from resource.scope_spans


def values(attributes: Iterator[KeyValue]) -> dict[str, object]:
    """Attributes as Python has them."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in attributes}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector on a port of its own."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
