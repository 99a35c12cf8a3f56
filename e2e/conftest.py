"""How tests with real parts are spread over processes."""

from __future__ import annotations

import pytest

from e2e.together import Together


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Together | None:
    """Of ``--dist loadgroup``."""
    return Together(config, log) if config.getvalue("dist") == "loadgroup" else None
