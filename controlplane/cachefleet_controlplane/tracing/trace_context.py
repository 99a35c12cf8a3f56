"""W3C Trace Context: a ``traceparent`` read and written. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cachefleet_controlplane.wire.headers import Header

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
_SAMPLED: Final = 1
_FORM: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of somebody else: its trace, its own id, and whether it is recorded."""

    trace_id: int
    span_id: int
    sampled: bool

    def header(self) -> Header:
        """Return the header that has the next process continue from here."""
        return TRACEPARENT, f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.sampled:02x}".encode()


def incoming_context(headers: Iterable[Header]) -> TraceContext | None:
    """Return the context that a client sends; None without one, or where it is not valid."""
    given = [value for name, value in headers if name == TRACEPARENT]
    return parse(given[0]) if len(given) == 1 else None


def parse(traceparent: bytes) -> TraceContext | None:
    """Return what a ``traceparent`` says, of later versions what this one knows; None where it is not valid."""
    found = _FORM.fullmatch(traceparent.strip(b" \t"))
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == b"ff" or (version == b"00" and more is not None) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def continued(headers: Iterable[Header], context: TraceContext, *, state: bool) -> list[Header]:
    """Return the headers with this context instead of the client's; ``state``: with the client's ``tracestate``."""
    left_out = (TRACEPARENT,) if state else (TRACEPARENT, TRACESTATE)
    return [*(header for header in headers if header[0] not in left_out), context.header()]
