"""What any test may ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.fakes import loop_clock


@pytest.fixture
async def hurried() -> AsyncIterator[None]:
    """Waiting takes next to no time: see there."""
    with loop_clock.hurried(asyncio.get_running_loop()):
        yield
