"""The few forms of PromQL that panels use, as functions that return its text."""

from __future__ import annotations

from typing import Final

RATE_INTERVAL: Final = "$__rate_interval"
"""Grafana's own range for rates: at least four scrapes."""

JOB: Final = 'job=~"$job"'
AGENTS: Final = 'job=~"$agents"'
MODEL: Final = 'model=~"$model"'
POOL: Final = 'pool=~"$pool"'
WORKER: Final = 'worker=~"$worker"'
NAMESPACE: Final = 'namespace=~"$namespace"'


def series(name: str, *matchers: str) -> str:
    """The latest value of a metric's series that all matchers choose."""
    return f"{name}{{{', '.join(matchers)}}}"


def rate(counter: str, *matchers: str) -> str:
    """What a counter's series grow by in a second."""
    return f"rate({series(counter, *matchers)}[{RATE_INTERVAL}])"


def increase(counter: str, *matchers: str) -> str:
    """What a counter's series grew by in the range of a rate."""
    return f"increase({series(counter, *matchers)}[{RATE_INTERVAL}])"


def ratio(part: str, whole: str) -> str:
    """One expression as a share of another; neither binds weaker than a division."""
    return f"{part} / {whole}"


def share_of_rates(part: str, whole: str) -> str:
    """One rate as a share of another, 1 at most: Prometheus extrapolates each to its range for itself."""
    return f"clamp_max({ratio(part, whole)}, 1)"


def share_by(part: str, whole: str, on: str) -> str:
    """One rate as a share of another that has fewer labels, 1 at most; ``on`` are those that both have."""
    return f"clamp_max({part} / on ({on}) group_left () {whole}, 1)"


def difference(expression: str, less: str) -> str:
    """What is left of one expression without another."""
    return f"{expression} - {less}"


def summed(expression: str, *, by: str = "") -> str:
    """A sum over all series, or one for each value of the labels ``by``."""
    return _aggregated("sum", expression, by)


def highest(expression: str, *, by: str = "") -> str:
    """The highest of all series, or of each value of the labels ``by``."""
    return _aggregated("max", expression, by)


def lowest(expression: str, *, by: str = "") -> str:
    """The lowest of all series, or of each value of the labels ``by``."""
    return _aggregated("min", expression, by)


def quantile(share: float, histogram: str, *matchers: str, by: str = "") -> str:
    """A quantile of what a histogram counted lately; ``share`` is above 0 and below 1."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {summed(rate(f'{histogram}_bucket', *matchers), by=labels)})"


def _aggregated(operator: str, expression: str, by: str) -> str:
    return f"{operator} by ({by}) ({expression})" if by else f"{operator}({expression})"
