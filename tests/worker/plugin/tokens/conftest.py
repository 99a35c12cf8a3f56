from __future__ import annotations

import pytest

from cachefleet_worker.plugin.tokens import exactness_check


@pytest.fixture
def quick_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what comes after it; test_exactness.py runs it whole."""
    monkeypatch.setattr(exactness_check, "TEXTS", 20)
    monkeypatch.setattr(exactness_check, "LEAST_TEXTS", 5)
