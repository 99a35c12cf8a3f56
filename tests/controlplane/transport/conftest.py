"""What the suites of this folder share: an application, and a server of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.transport.probe import Probe
from tests.controlplane.transport.transports import Served, served

__all__ = ["probe", "side"]


@pytest.fixture
def probe() -> Probe:
    """The application that is served."""
    return Probe()


@pytest.fixture
async def side(probe: Probe) -> AsyncIterator[Served]:
    """A server of the application, with generous bounds."""
    async with served(probe) as made:
        yield made
