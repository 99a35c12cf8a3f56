"""Exponential back-off with a cap (pure)."""

from __future__ import annotations

_MOST_DOUBLINGS = 32


def backoff(doublings: int, *, first: float, longest: float) -> float:
    """Pause before the next attempt: ``first * 2**doublings``, at most ``longest``; in their unit, usually seconds."""
    return min(longest, first * 2.0 ** min(max(doublings, 0), _MOST_DOUBLINGS))
