"""How metrics are counted cheaply, and shown to who scrapes them: Prometheus's text format, or OpenMetrics.

OpenMetrics has exemplars: an observation of a request whose trace is recorded tells the trace's id. All is for one
thread: that of the event loop, which answers scrapes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric

M = TypeVar("M", Counter, Histogram)

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
EXEMPLAR: Final[ContextVar[Mapping[str, str] | None]] = ContextVar("exemplar", default=None)
"""Labels of the exemplar of what is observed in this task: its trace, where that is recorded."""
MAX_SERIES: Final = 4096
"""Series of one metric that are cached by their labels."""
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


def remembering(metric: M) -> M:
    """The metric with its series cached by label values, nine times as fast; no series may be removed from it."""
    metric.labels = lru_cache(MAX_SERIES)(metric.labels)  # type: ignore[method-assign]
    return metric


class SettledRegistry(CollectorRegistry):
    """A registry that has what is ``pending`` counted whenever it is collected."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Callable[[], None]] = []

    def settle(self) -> None:
        """Have all counted that is added up so far."""
        for settle in self.pending:
            settle()

    def collect(self) -> Iterable[Metric]:
        """All metrics, as of now."""
        self.settle()
        return super().collect()
