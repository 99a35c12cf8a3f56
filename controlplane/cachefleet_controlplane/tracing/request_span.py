"""What is noted of a traced request as it proceeds: its ids, its phases, and its attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cachefleet_controlplane.tracing.span import Attributes
from cachefleet_controlplane.tracing.trace_context import TraceContext, continued
from cachefleet_controlplane.wire.headers import Header


@dataclass(frozen=True, slots=True)
class Phase:
    """Something that took a request's time; monotonic seconds."""

    name: str
    began: float
    ended: float
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt that was sent to a worker at ``url``; its worker continues ``span_id``."""

    span_id: int
    began: float
    url: str


@dataclass(slots=True)
class RequestSpan:
    """The notes on one traced request; ``new_id`` makes span ids."""

    trace_id: int
    span_id: int
    parent_id: int
    """The client's span; 0 without one."""
    arrived: float
    """When the request came, in monotonic seconds."""
    unix_offset: float
    """What is to be added to those for Unix time."""
    new_id: Callable[[], int]
    server: tuple[str, int] | None = None
    """Where the request came in: host and port."""
    phases: list[Phase] = field(default_factory=list)
    legs: list[AttemptSpan] = field(default_factory=list)
    upcoming: int = 0
    """Id of the next attempt's span."""

    def __post_init__(self) -> None:
        """Choose the first attempt's id: a worker may be sent the request before it is an attempt."""
        self.upcoming = self.new_id()

    def phase(self, name: str, began: float, ended: float, **attributes: str) -> None:
        """Note a phase that has ended."""
        self.phases.append(Phase(name, began, ended, attributes))

    def leg(self, headers: Sequence[Header], began: float, url: str) -> list[Header]:
        """Note an attempt that begins; return its headers."""
        self.legs.append(AttemptSpan(self.upcoming, began, url))
        told = continued(headers, self.next_context(), state=True)
        self.upcoming = self.new_id()
        return told

    def next_context(self) -> TraceContext:
        """Return what the next attempt's worker continues."""
        return TraceContext(self.trace_id, self.upcoming, sampled=True)
