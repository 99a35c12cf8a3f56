"""What differs with where a control plane runs: where its pools come from, and who decides about tokens."""

from __future__ import annotations

from typing import TypeVar

from cachefleet_controlplane.auth.file_tokens import FileAuthorizer
from cachefleet_controlplane.auth.token_review import ReviewBounds, TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource, WatchBounds
from cachefleet_controlplane.pools.source import FilePoolSource, PoolSource
from cachefleet_controlplane.settings import Settings
from cachefleet_runtime.kubernetes import KubernetesClient

T = TypeVar("T")

Authority = FileAuthorizer | TokenReviewAuthorizer
"""Who decides about tokens, for agents and for people."""


def pool_source(settings: Settings, api: KubernetesClient | None, metrics: Metrics) -> PoolSource:
    if settings.pool_source == "kubernetes":
        bounds = WatchBounds(
            inactivity_seconds=settings.watch_inactivity_seconds,
            longest_pause_seconds=settings.watch_backoff_seconds,
            page=settings.watch_page,
        )
        return KubePoolSource(_needed(api), metrics=metrics, namespaces=settings.namespaces, bounds=bounds)
    return FilePoolSource(
        _needed(settings.pool_file),
        _needed(settings.endpoints_file),
        metrics=metrics,
        poll_seconds=settings.pool_file_poll_seconds,
    )


def authority(settings: Settings, api: KubernetesClient | None, metrics: Metrics) -> Authority:
    if settings.auth == "kubernetes":
        bounds = ReviewBounds(request_seconds=settings.review_timeout_seconds)
        return TokenReviewAuthorizer(_needed(api), metrics=metrics, namespaces=settings.namespaces, bounds=bounds)
    return FileAuthorizer(_needed(settings.reports_token_file), _needed(settings.admin_token_file), metrics=metrics)


def _needed(value: T | None) -> T:
    """What Settings has seen to."""
    if value is None:
        raise ValueError("a setting that this mode needs is missing")
    return value
