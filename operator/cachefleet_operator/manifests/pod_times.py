"""How long a worker pod may take to start and to end, by its own numbers, which its pool may have changed (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

from cachefleet_operator.settings import Settings

GRACE_MARGIN_SECONDS: Final = 15
"""Part of the grace period for the steps between drain, exit of the engine and exit of the agent."""
_GRACE: Final = "terminationGracePeriodSeconds"
_DEFAULT_GRACE_SECONDS: Final = 30
_DEFAULTS: Final[Mapping[str, int]] = {"initialDelaySeconds": 0, "periodSeconds": 10, "failureThreshold": 3}
"""Of a probe and of a pod that name none: Kubernetes' own."""


def grace_seconds(settings: Settings) -> int:
    """Termination grace period in seconds: the drain, then the engine's shutdown, and a margin."""
    return settings.worker_drain_seconds + settings.worker_shutdown_seconds + GRACE_MARGIN_SECONDS


def within_grace(settings: Settings, pod: Mapping[str, Any]) -> Settings:
    """``settings`` with the times for drain and shutdown that fit a pod's grace period, the shutdown's first."""
    grace = pod.get(_GRACE, _DEFAULT_GRACE_SECONDS)
    if not _is_number(grace) or grace == grace_seconds(settings):
        return settings
    left = max(1, grace - GRACE_MARGIN_SECONDS)
    shutdown = min(settings.worker_shutdown_seconds, left - 1)
    return settings.model_copy(update={"worker_drain_seconds": left - shutdown, "worker_shutdown_seconds": shutdown})


def startup_seconds(pod: Mapping[str, Any]) -> int:
    """What its startup probes allow its containers: init containers one after the other, then the others at once."""
    return sum(_startups(pod, "initContainers")) + max(_startups(pod, "containers"), default=0)


def _startups(pod: Mapping[str, Any], part: str) -> Iterator[int]:
    for container in pod.get(part) or ():
        probe = container.get("startupProbe") if isinstance(container, Mapping) else None
        if isinstance(probe, Mapping):
            delay, period, failures = (_number(probe, name) for name in _DEFAULTS)
            yield delay + period * failures


def _number(probe: Mapping[str, Any], name: str) -> int:
    value = probe.get(name)
    return int(value) if _is_number(value) else _DEFAULTS[name]


def _is_number(value: Any) -> TypeGuard[int]:
    """Whether it is a whole number; what else somebody wrote there is the API server's to refuse."""
    return isinstance(value, int) and not isinstance(value, bool)
