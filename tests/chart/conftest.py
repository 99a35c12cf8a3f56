"""Helm is built, once and in minutes, before any test's clock runs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from e2e.cluster.binaries import UnavailableError
from tests.chart import helm


def pytest_collection_finish(session: pytest.Session) -> None:
    here = [item for item in session.items if Path(__file__).parent in item.path.parents]
    wanted = any(item.get_closest_marker("cluster") for item in here)
    if wanted and not session.config.option.collectonly:
        with contextlib.suppress(UnavailableError):  # told again by the test that asks for it
            helm.program()
