"""A worker's phase and readiness, from its condition: pure."""

from __future__ import annotations

from dataclasses import dataclass

from cachefleet_core.report_frames import ENGINE_LOST, Phase


@dataclass(frozen=True, slots=True)
class Condition:
    """What an agent knows of its worker; times in seconds, ``lost_for`` None unless an engine was there and is lost.

    ``waited_for`` is how long the agent has reported to control planes, or tried to.
    """

    contract_known: bool = False
    """The engine has answered in the present epoch, and its contract is known."""
    answering: bool = False
    refused: bool = False
    """The engine refuses the worker key."""
    draining: bool = False
    finding: str = ""
    """Why the engine is withdrawn in this epoch, as a code."""
    warming: bool = False
    registered: bool = False
    waited_for: float = 0.0
    lost_for: float | None = None


def phase(condition: Condition, *, failed_seconds: float) -> Phase:
    """The phase that States report.

    An engine that does not answer is failed while its process exists; a lost one is starting for ``failed_seconds``,
    then failed.
    """
    if condition.draining:
        return Phase.DRAINING
    if condition.refused:
        return Phase.FAILED
    if not condition.contract_known:
        gone = condition.lost_for is not None and condition.lost_for > failed_seconds
        return Phase.FAILED if gone else Phase.STARTING
    if condition.finding or not condition.answering:
        return Phase.FAILED
    return Phase.WARMING if condition.warming else Phase.READY


def unready(condition: Condition, *, registration_seconds: float) -> list[str]:
    """Reasons against readiness, as codes; empty where the worker should take traffic."""
    reasons = []
    if condition.draining:
        reasons.append("draining")
    if condition.refused:
        reasons.append("engine_refuses_key")
    elif not condition.contract_known:
        reasons.append("engine_starting" if condition.lost_for is None else ENGINE_LOST)
    elif not condition.answering:
        reasons.append("engine_not_answering")
    if condition.finding:
        reasons.append(condition.finding)
    if condition.warming:
        reasons.append("warming")
    if not condition.registered and condition.waited_for < registration_seconds:
        reasons.append("control_plane_not_reached")
    return reasons
