"""The pause before the next try: exponential and capped. Pure."""

from __future__ import annotations

_MOST_DOUBLINGS = 32


def backoff(doublings: int, *, first: float, longest: float) -> float:
    """``first * 2**doublings``, at most ``longest``; in the unit of both, seconds as a rule."""
    return min(longest, first * 2.0 ** min(max(doublings, 0), _MOST_DOUBLINGS))
