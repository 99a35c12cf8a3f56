"""Decides at a request's beginning whether it is traced, and takes its spans at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from cachefleet_controlplane.exposition import EXEMPLAR
from cachefleet_controlplane.tracing.request_span import RequestSpan
from cachefleet_controlplane.tracing.span import Span
from cachefleet_controlplane.tracing.trace_context import TraceContext, continued, incoming_context
from cachefleet_controlplane.wire.headers import Header

_TRACE_BITS: Final = 128
_SPAN_BITS: Final = 64

Sampler = Callable[[int, TraceContext | None], bool]
"""Whether to record a trace of this id, whose beginning the client has sent or not."""


class Sink(Protocol):
    """Where ended spans go; ``submit`` never waits, and never fails."""

    def submit(self, spans: Sequence[Span]) -> None: ...

    async def close(self) -> None: ...


class Tracer:
    """Traces the requests that ``sampler`` chooses; their spans go to ``sink``."""

    def __init__(self, sampler: Sampler, sink: Sink, *, random_bits: Callable[[int], int] = random.getrandbits) -> None:
        self._sampler = sampler
        self._sink = sink
        self._random_bits = random_bits

    def begin(
        self,
        headers: list[Header],
        *,
        arrived: float,
        unix_offset: float,
        server: tuple[str, int] | None = None,
    ) -> tuple[RequestSpan | None, list[Header]]:
        """Return the notes to take on a request, None where it is not traced, and the headers for its workers.

        Workers of a request that is not traced are told so, or each might begin a trace of its own.
        """
        parent = incoming_context(headers)
        trace_id = self._id(_TRACE_BITS) if parent is None else parent.trace_id
        if not self._sampler(trace_id, parent):
            EXEMPLAR.set(None)  # a pipelined request's task begins in the context of the one before
            return None, self._untraced(headers, trace_id, parent)
        span = RequestSpan(
            trace_id,
            self._new_id(),
            parent.span_id if parent else 0,
            arrived=arrived,
            unix_offset=unix_offset,
            new_id=self._new_id,
            server=server,
        )
        EXEMPLAR.set({"trace_id": f"{trace_id:032x}", "span_id": f"{span.span_id:016x}"})
        return span, continued(headers, span.next_context(), state=parent is not None)

    def end(self, spans: Sequence[Span]) -> None:
        """Take the spans of a request that has ended, in the task that began it."""
        EXEMPLAR.set(None)
        self._sink.submit(spans)

    async def close(self) -> None:
        """Send what waits, within a bound."""
        await self._sink.close()

    def _untraced(self, headers: list[Header], trace_id: int, parent: TraceContext | None) -> list[Header]:
        if parent is not None and not parent.sampled:
            return headers
        # Whoever changes the flag has to be a span of its own, even if that is recorded nowhere.
        return continued(headers, TraceContext(trace_id, self._new_id(), sampled=False), state=parent is not None)

    def _new_id(self) -> int:
        return self._id(_SPAN_BITS)

    def _id(self, bits: int) -> int:
        return self._random_bits(bits) or 1  # all zeros is no id
