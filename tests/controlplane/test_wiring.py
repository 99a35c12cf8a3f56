"""Which code is used, and who decides."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachefleet_controlplane.fleet.backend import backend
from cachefleet_controlplane.fleet.fleet import Fleet
from cachefleet_controlplane.index.python_index import PythonIndex
from cachefleet_controlplane.metrics import Metrics
from cachefleet_controlplane.pools.kubernetes_source import KubePoolSource
from cachefleet_controlplane.selection.selection import Selector
from cachefleet_controlplane.settings import Settings, SettingsError
from cachefleet_controlplane.wiring import pool_source, transport_of
from cachefleet_core.block_keys import BlockKeyer
from cachefleet_core.native import API, NativeError


def test_python_may_be_asked_for() -> None:
    chosen = backend("python")
    assert (chosen.code.name, chosen.index, chosen.code.keyer, chosen.selector) == (
        "python",
        PythonIndex,
        BlockKeyer,
        Selector,
    )


def test_native_code_is_used_where_it_is_there() -> None:
    pytest.importorskip("cachefleet_native")
    chosen = backend()
    assert chosen.code.name == "native"
    assert chosen.index().match([], []) == []
    assert issubclass(chosen.code.keyer, BlockKeyer)
    fleet = Fleet(chosen.index(), index_key=b"k" * 32, keyer=chosen.code.keyer, selector=chosen.selector)
    assert type(fleet._selector).__name__ == "NativeSelector"


def test_without_native_code_the_twin_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    chosen = backend()
    assert (chosen.code.name, chosen.index, chosen.code.keyer) == ("python", PythonIndex, BlockKeyer)
    with pytest.raises(NativeError, match="cachefleet_native"):
        backend("native")


def test_native_code_of_another_interface_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = ModuleType("cachefleet_native")
    vars(other)["API"] = API + 1
    monkeypatch.setitem(sys.modules, "cachefleet_native", other)
    assert backend().code.name == "python"
    with pytest.raises(NativeError, match="interface"):
        backend("native")


def test_without_native_code_the_start_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    with pytest.raises(SettingsError) as refused:
        transport_of(Settings.model_construct(), Metrics())
    assert refused.value.lines == ["the control plane needs native code: cachefleet_native is not installed"]


@pytest.mark.parametrize("tls", [False, True])
def test_the_source_of_pools_knows_whether_agents_report_by_tls(tmp_path: Path, *, tls: bool) -> None:
    """Else workers of the other kind would wait for agents that cannot come while a pool rolls."""
    given: dict[str, Any] = {"pool_source": "kubernetes", "auth": "kubernetes", "fleet_key_file": tmp_path / "key"}
    api: Any = object()
    folder = {"tls_folder": tmp_path} if tls else {}
    source = pool_source(Settings(**given | folder), api, Metrics(), announced=lambda _: ())
    assert isinstance(source, KubePoolSource)
    assert source._tls is tls
