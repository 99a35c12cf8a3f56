"""Why an engine serves nothing though it answers its health checks, and how that is said to people. Pure."""

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
    """A Suspension, or a later agent's word, as people read it."""
    return suspended.replace("_", " ")
