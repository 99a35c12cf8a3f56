"""How metrics are shown to who scrapes them: Prometheus's text format, or OpenMetrics where it is asked for.

OpenMetrics has exemplars: an observation of a request whose trace is recorded tells the trace's id.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
EXEMPLAR: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("exemplar", default=None)
"""Labels of the exemplar of what is observed in this task: its trace, where that is recorded."""
_OPEN_METRICS: Final = "application/openmetrics-text"


def observe(histogram: Histogram, value: float) -> None:
    """Observe a value, with the exemplar of the task."""
    histogram.observe(value, EXEMPLAR.get())  # type: ignore[arg-type]  # any mapping will do


def exposition(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """All metrics and their content type; OpenMetrics where the Accept header names a version that there is."""
    encode, kind = choose_encoder(accept)
    if kind.startswith(_OPEN_METRICS):
        return encode(registry), kind
    return generate_latest(registry), CONTENT_TYPE
