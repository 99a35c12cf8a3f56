"""One span that has ended, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Attributes = Mapping[str, str | int | float | bool]


class Kind(StrEnum):
    """Which side of a call a span is, as OpenTelemetry names it."""

    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened within a span, at a Unix time in seconds."""

    name: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What OpenTelemetry is given; times are Unix time in seconds."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int = 0
    """0 where it has none."""
    began: float
    ended: float
    kind: Kind = Kind.INTERNAL
    attributes: Attributes = field(default_factory=dict)
    events: Sequence[SpanEvent] = ()
    failed: bool = False
