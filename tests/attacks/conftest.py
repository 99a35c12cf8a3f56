"""The target of the attacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.attacks.target import Target, attacked
from tests.controlplane.conftest import migrated_once, postgresql

__all__ = ["migrated_once", "postgresql", "target"]


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    """A control plane with its defaults."""
    async with attacked(tmp_path) as made:
        yield made
