"""What the suites of this folder share: each of their tests runs over every transport."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.transports import TRANSPORTS, Served, missing, served

__all__ = ["probe", "side", "transport"]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """A transport's name; skipped where this machine has none of that name."""
    name: str = request.param
    if reason := missing(name):
        pytest.skip(reason)
    return name


@pytest.fixture
def probe() -> Probe:
    """The application that is served."""
    return Probe()


@pytest.fixture
async def side(transport: str, probe: Probe) -> AsyncIterator[Served]:
    """A server of the application, with generous bounds."""
    async with served(transport, probe) as made:
        yield made
