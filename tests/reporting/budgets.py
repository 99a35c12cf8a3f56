"""The tiers of the tests in the order in which `make test` runs them, and how long each may take."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple


class Tier(NamedTuple):
    """A part of all tests; ``seconds`` is its budget on a quiet machine with 2 cores, everything built before."""

    name: str
    target: str
    """What `make` calls it."""
    seconds: float


TIERS: Final = (
    Tier("check", "check", 40),
    Tier("unit", "unit", 210),
    Tier("cluster", "test-cluster", 150),
    Tier("console", "test-console", 50),
    Tier("engine", "engine", 460),
    Tier("node", "e2e", 400),
)
WHOLE_SECONDS: Final = 1310.0
"""Of all tiers together."""
BY_NAME: Final = MappingProxyType({tier.name: tier for tier in TIERS})
