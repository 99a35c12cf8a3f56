"""Pools by the control plane that they name: an operator works for one, and leaves others to other operators. Pure."""

from __future__ import annotations

from typing import Any

from cachefleet_core.pool.spec import DEFAULT_CONTROL_PLANE
from cachefleet_operator.reasons import Reason
from cachefleet_operator.reconcile.apply import Emit
from cachefleet_operator.settings import Settings
from cachefleet_operator.status.events import Subject, lasting_event
from cachefleet_runtime.kubernetes import Object


def control_plane_of(pool: Object) -> str:
    """Name of the control plane that a pool names, also one whose spec cannot be read otherwise."""
    spec: Any = pool.get("spec") or {}
    named = spec.get("controlPlane")
    return named if isinstance(named, str) and named else DEFAULT_CONTROL_PLANE


def is_own(pool: Object, settings: Settings) -> bool:
    """Whether a pool is of the operator with these settings."""
    return control_plane_of(pool) == settings.control_plane_name


def tell_unknown(pool: Object, settings: Settings, *, now: str) -> list[Emit]:
    """The event of a pool that names none of the control planes that are known; none where it names one.

    All operators that know the same control planes tell the same event, which is there once.
    """
    named, known, metadata = control_plane_of(pool), settings.known_control_planes, pool["metadata"]
    if named in known:
        return []
    subject = Subject(metadata["name"], metadata["namespace"], metadata["uid"], metadata["resourceVersion"])
    words = (
        f"spec.controlPlane is {named}, and there are {', '.join(sorted(known))}: nobody serves this pool. It never "
    )
    advice = "changes in the life of a pool: make it anew with another one, or install that control plane"
    return [Emit(lasting_event(Reason.CONTROL_PLANE_UNKNOWN, words + advice, subject, now=now))]
