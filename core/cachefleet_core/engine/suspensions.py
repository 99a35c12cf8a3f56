"""Why an engine serves nothing though it answers its health checks, with the text shown to users. Pure."""

from __future__ import annotations

from enum import StrEnum


class Suspension(StrEnum):
    """Why an engine serves nothing though it answers its health checks."""

    ASLEEP = "asleep"
    """Its memory was given back (vLLM's ``/sleep``), or is being."""
    PAUSED = "paused"
    """Its scheduler takes no requests (``/pause``, or ``/sleep`` of level 0)."""
    UPDATING_WEIGHTS = "updating_weights"
    STUCK = "stuck"
    """Requests wait, and it has made no step for a long time."""


def suspension_words(suspended: str) -> str:
    """Display text of a Suspension, or of an unknown value from a newer agent."""
    return suspended.replace("_", " ")
