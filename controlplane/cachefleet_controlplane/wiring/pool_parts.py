"""Builds what follows pools and what checks tokens: from files, or from Kubernetes."""

from __future__ import annotations

from typing import TypeVar

from cachefleet_controlplane.internal_auth.file_tokens import FileAuthorizer
from cachefleet_controlplane.internal_auth.token_review import TokenReviewAuthorizer
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.first_ready_times import NAME as FIRST_READY_FILE
from cachefleet_controlplane.pools.first_ready_times import FirstReadyTimes
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.pools.source import POLL_SECONDS, Announced, FilePoolSource, PoolSource
from cachefleet_controlplane.wiring.settings import Settings
from cachefleet_core.tenancy import FleetKey
from cachefleet_runtime.kubernetes import KubernetesClient

T = TypeVar("T")

Authority = FileAuthorizer | TokenReviewAuthorizer
"""Checks the tokens of agents and of users of the admin API."""


def pool_source(
    settings: Settings,
    api: KubernetesClient | None,
    metrics: Metrics,
    *,
    announced: Announced,
    poll_seconds: float = POLL_SECONDS,
) -> PoolSource:
    """The source of pools that the settings name; ``api`` is needed for Kubernetes, ``announced`` for files only."""
    if settings.pool_source == "kubernetes":
        tls = settings.tls_folder is not None
        return KubePoolSource(_needed(api), metrics=metrics, namespaces=settings.namespaces, tls=tls)
    return FilePoolSource(
        _needed(settings.pool_file),
        _needed(settings.endpoints_file),
        metrics=metrics,
        poll_seconds=poll_seconds,
        announced=announced,
        first_ready=FirstReadyTimes(settings.data_dir / FIRST_READY_FILE),
    )


def authority(
    settings: Settings,
    api: KubernetesClient | None,
    metrics: Metrics,
    *,
    fleet_key: FleetKey,
) -> Authority:
    """The token checks that the settings name; ``api`` is needed for Kubernetes only."""
    if settings.auth == "kubernetes":
        return TokenReviewAuthorizer(_needed(api), metrics=metrics, namespaces=settings.namespaces)
    admin = _needed(settings.admin_token_file)
    return FileAuthorizer(fleet_key, admin, metrics=metrics, reports_file=settings.reports_token_file)


def _needed(value: T | None) -> T:
    """The value, which the validation of Settings guarantees in this mode."""
    if value is None:
        raise ValueError("a setting that this mode needs is missing")
    return value
