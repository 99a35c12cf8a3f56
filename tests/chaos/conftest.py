"""What scenarios ask for."""

from __future__ import annotations

from tests.controlplane.conftest import postgresql
from tests.worker.conftest import make_settings

__all__ = ["make_settings", "postgresql"]
