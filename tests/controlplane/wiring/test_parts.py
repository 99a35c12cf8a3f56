"""What the parts of a control plane are made of."""

from pathlib import Path
from typing import Any

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.wiring.pool_parts import pool_source
from cachefleet_controlplane.wiring.settings import Settings


@pytest.mark.parametrize("tls", [False, True])
def test_the_source_of_pools_knows_whether_agents_report_by_tls(tmp_path: Path, *, tls: bool) -> None:
    """Else workers of the other kind would wait for agents that cannot come while a pool rolls."""
    given: dict[str, Any] = {"pool_source": "kubernetes", "auth": "kubernetes", "fleet_key_file": tmp_path / "key"}
    api: Any = object()
    folder = {"tls_folder": tmp_path} if tls else {}
    source = pool_source(Settings(**given | folder), api, Metrics(), announced=lambda _: ())
    assert isinstance(source, KubePoolSource)
    assert source._tls is tls
