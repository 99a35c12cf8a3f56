"""Kubernetes events for changes of a pool's conditions, each emitted once (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachefleet_core.budget import BudgetReason
from cachefleet_core.pool.spec import API_VERSION, KIND
from cachefleet_operator.kube.objects import MANAGER, Ref
from cachefleet_operator.reasons import Reason

# (condition, status) -> type of the event, and whether only a change from the opposite status causes it.
_TOLD: Final[Mapping[tuple[str, str], tuple[str, bool]]] = {
    ("BudgetAdmitted", "False"): ("Warning", False),
    ("BudgetAdmitted", "True"): ("Normal", True),
    ("ConfigValid", "False"): ("Warning", False),
    ("ConfigValid", "True"): ("Normal", True),
    ("ContractConsistent", "False"): ("Warning", False),
    ("ContractConsistent", "True"): ("Normal", True),
    ("Degraded", "True"): ("Warning", False),
    ("EngineAsAsked", "False"): ("Warning", False),
    ("EngineAsAsked", "True"): ("Normal", True),
    ("HitRateMet", "False"): ("Warning", False),
    ("HitRateMet", "True"): ("Normal", True),
    ("IndexBlind", "False"): ("Normal", True),
    ("IndexBlind", "True"): ("Warning", False),
    ("IndexFresh", "False"): ("Warning", True),
    ("KeysBroken", "False"): ("Normal", True),
    ("KeysBroken", "True"): ("Warning", False),
    ("ModelNameConflict", "False"): ("Normal", True),
    ("ModelNameConflict", "True"): ("Warning", False),
    ("Progressing", "True"): ("Normal", False),
    ("Ready", "True"): ("Normal", False),
    ("WorkersAvailable", "False"): ("Warning", True),
}
_WORDS_COUNT: Final = frozenset({"BudgetAdmitted", "ConfigValid"})
"""Conditions about the spec: a new message is a new event. Other messages count workers and change all the time."""
_SPEC_REASONS: Final = frozenset(
    {
        *BudgetReason,
        Reason.INVALID,
        Reason.INVALID_POD_TEMPLATE,
        Reason.REFUSED,
        Reason.NAME_TAKEN,
        Reason.CHAT_TEMPLATE_MISSING,
        Reason.POOLS_DIFFER,
    }
)
QUIET_SECONDS: Final = 60.0
MAX_REMEMBERED: Final = 4096


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
    """Events for the changes from the previous conditions to these.

    An event's name is derived from the change: created again after an interruption, it is refused as existing.
    """
    before = {condition.get("type"): condition for condition in previous}
    events = []
    for condition in conditions:
        old = before.get(condition["type"])
        kind = _kind(old, condition)
        if kind:
            events.append(_event(kind, old, condition, subject, now=now))
    # One event for each type and reason: two conditions may have the same cause.
    return list({(event["type"], event["reason"]): event for event in reversed(events)}.values())[::-1]


def event_of(reason: Reason, message: str, subject: Subject, *, now: str) -> dict[str, Any]:
    """A warning that no condition goes with: about something that was put right at once."""
    condition = {"type": "", "status": "", "reason": reason, "message": message}
    return _event("Warning", {"lastTransitionTime": now}, condition, subject, now=now)


def lasting_event(reason: Reason, message: str, subject: Subject, *, now: str) -> dict[str, Any]:
    """A warning about what stays as it is: told again, it is the same event."""
    condition = {"type": "", "status": "", "reason": reason, "message": message}
    return _event("Warning", None, condition, subject, now=now)


class Quiet:
    """Rate limit for events of conditions that flap: one event per pool, type and reason in ``seconds``; with a message
    about the spec, one per message too. Keeps at most ``most`` entries, forgetting the oldest.
    """

    def __init__(
        self, clock: Callable[[], float], *, seconds: float = QUIET_SECONDS, most: int = MAX_REMEMBERED
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._emitted: dict[tuple[str, ...], float] = {}

    def lets(self, event: Mapping[str, Any]) -> bool:
        """Whether the event may be emitted now."""
        emitted = self._emitted.get(_topic(event))
        return emitted is None or self._clock() - emitted >= self._seconds

    def record(self, event: Mapping[str, Any]) -> None:
        """Record that the event was emitted."""
        topic = _topic(event)
        self._emitted.pop(topic, None)
        self._emitted[topic] = self._clock()
        while len(self._emitted) > self._most:
            del self._emitted[next(iter(self._emitted))]


def _topic(event: Mapping[str, Any]) -> tuple[str, ...]:
    words = event["message"] if event["reason"] in _SPEC_REASONS else ""
    return (event["involvedObject"]["uid"], event["type"], event["reason"], words)


def _kind(old: Mapping[str, Any] | None, new: Mapping[str, Any]) -> str:
    if old is not None and _same(old, new):
        return ""
    kind, recovers = _TOLD.get((new["type"], new["status"]), ("", False))
    if recovers and (old is None or old.get("status") in {new["status"], "Unknown"}):
        return ""
    return kind


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    fields = ["status", "reason"]
    if new["reason"] == Reason.REFUSED:  # its message differs at each attempt
        fields.append("observedGeneration")
    elif new["type"] in _WORDS_COUNT:
        fields.append("message")
    return all(old.get(field) == new.get(field) for field in fields)


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
