"""What is worth an event: a change of condition, told once (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.pool import API_VERSION, KIND
from cachefleet_operator.api import MANAGER, Ref

# (condition, status) -> type of the event, and whether it needs something to recover from.
_TOLD: Final[Mapping[tuple[str, str], tuple[str, bool]]] = {
    ("BudgetAdmitted", "False"): ("Warning", False),
    ("BudgetAdmitted", "True"): ("Normal", True),
    ("ConfigValid", "False"): ("Warning", False),
    ("ConfigValid", "True"): ("Normal", True),
    ("Progressing", "True"): ("Normal", False),
    ("Ready", "True"): ("Normal", False),
    ("WorkersAvailable", "False"): ("Warning", True),
}
_TOLD_REASONS: Final = frozenset({("Progressing", "Stalled"), ("WorkersAvailable", "PodsRefused")})
"""Warnings whatever the status and whatever came before."""
_WORDS_COUNT: Final = frozenset({"BudgetAdmitted", "ConfigValid"})
"""Conditions about the spec: another message is news. Elsewhere messages count workers and change all the time."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The pool that events are about."""

    name: str
    namespace: str
    uid: str
    resource_version: str


def events_of(
    previous: Sequence[Mapping[str, Any]], conditions: Sequence[Mapping[str, Any]], subject: Subject, *, now: str
) -> list[dict[str, Any]]:
    """The events that lead from the previous conditions to these.

    An event's name follows from the change it tells of: told again after an interruption, it is refused as existing.
    """
    before = {condition.get("type"): condition for condition in previous}
    events = []
    for condition in conditions:
        old = before.get(condition["type"])
        kind = _kind(old, condition)
        if kind:
            events.append(_event(kind, old, condition, subject, now=now))
    return events


def _kind(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    if old is not None and _same(old, new):
        return ""
    if (new["type"], new["reason"]) in _TOLD_REASONS:
        return "Warning"
    kind, recovers = _TOLD.get((new["type"], new["status"]), ("", False))
    if recovers and (old is None or old.get("status") in {new["status"], "Unknown"}):
        return ""
    return kind


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    fields = ("status", "reason", "message") if new["type"] in _WORDS_COUNT else ("status", "reason")
    return all(old.get(field) == new[field] for field in fields)


def _event(
    kind: str, old: Mapping[str, Any] | None, new: Mapping[str, Any], subject: Subject, *, now: str
) -> dict[str, Any]:
    was = "" if old is None else f"{old.get('lastTransitionTime')}{old.get('reason')}{old.get('observedGeneration')}"
    text = "\n".join((subject.uid, new["type"], new["status"], new["reason"], new["message"], was))
    name = f"{subject.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return {
        **Ref("Event", subject.namespace, name).manifest(),
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": subject.name,
            "namespace": subject.namespace,
            "uid": subject.uid,
            "resourceVersion": subject.resource_version,
        },
        "type": kind,
        "reason": new["reason"],
        "message": new["message"],
        "source": {"component": MANAGER},
        "reportingComponent": MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
