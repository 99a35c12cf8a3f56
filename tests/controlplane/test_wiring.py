"""What the parts of a control plane are made of."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_controlplane.wiring import native_code_of, pool_source
from cachefleet_core.native import API


def test_native_code_of_another_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("cachefleet_native")
    vars(other)["API"] = API + 1
    monkeypatch.setitem(sys.modules, "cachefleet_native", other)
    with pytest.raises(SettingsError, match="interface"):
        native_code_of()


def test_without_native_code_the_start_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    with pytest.raises(SettingsError) as refused:
        native_code_of()
    assert refused.value.lines[0].startswith("the control plane needs native code: cachefleet_native is not installed")
    assert len(refused.value.lines) == 1


@pytest.mark.parametrize("tls", [False, True])
def test_the_source_of_pools_knows_whether_agents_report_by_tls(tmp_path: Path, *, tls: bool) -> None:
    """Else workers of the other kind would wait for agents that cannot come while a pool rolls."""
    given: dict[str, Any] = {"pool_source": "kubernetes", "auth": "kubernetes", "fleet_key_file": tmp_path / "key"}
    api: Any = object()
    folder = {"tls_folder": tmp_path} if tls else {}
    source = pool_source(Settings(**given | folder), api, Metrics(), announced=lambda _: ())
    assert isinstance(source, KubePoolSource)
    assert source._tls is tls
