"""Where a worker is in its life, and whether it should take traffic: pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_core.reports import Phase


@dataclass(frozen=True, slots=True)
class Condition:
    """What an agent knows of its worker; times in seconds, ``lost_for`` None where the engine was never there.

    ``waited_for`` is how long it has reported to control planes, or tried to.
    """

    known: bool = False
    """The engine answered and its contract is known, in the present epoch."""
    answering: bool = False
    draining: bool = False
    finding: str = ""
    """Why the engine is not to be trusted in this epoch; a word."""
    warming: bool = False
    registered: bool = False
    waited_for: float = 0.0
    lost_for: float | None = None


def phase(condition: Condition, *, failed_seconds: float) -> Phase:
    """An engine that does not answer is failed while its process is there, starting while it is expected back."""
    if condition.draining:
        return Phase.DRAINING
    if not condition.known:
        gone = condition.lost_for is not None and condition.lost_for > failed_seconds
        return Phase.FAILED if gone else Phase.STARTING
    if condition.finding or not condition.answering:
        return Phase.FAILED
    return Phase.WARMING if condition.warming else Phase.READY


def unready(condition: Condition, *, registration_seconds: float) -> list[str]:
    """Why the worker should take no traffic; empty where it should."""
    reasons = []
    if condition.draining:
        reasons.append("draining")
    if not condition.known:
        reasons.append("engine_starting" if condition.lost_for is None else "engine_lost")
    elif not condition.answering:
        reasons.append("engine_not_answering")
    if condition.finding:
        reasons.append(condition.finding)
    if condition.warming:
        reasons.append("warming")
    if not condition.registered and condition.waited_for < registration_seconds:
        reasons.append("control_plane_not_reached")
    return reasons
