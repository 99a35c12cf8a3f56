from __future__ import annotations

import pytest

from cachefleet_worker.plugin.tokens import selftest


@pytest.fixture
def quick_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what comes after it; test_exactness.py runs it whole."""
    monkeypatch.setattr(selftest, "TEXTS", 20)
    monkeypatch.setattr(selftest, "LEAST_TEXTS", 5)
