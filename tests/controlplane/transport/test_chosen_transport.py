"""Which transport is used, who decides, and what /metrics says of it."""

import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cachefleet_controlplane.settings import Settings
from cachefleet_controlplane.transport.chosen_transport import Transport, choose_transport
from cachefleet_controlplane.transport.transport_metrics import TransportCollector
from cachefleet_core.native import NativeError


def test_python_may_be_asked_for() -> None:
    chosen = choose_transport("python")
    assert (chosen.code, chosen.reason, chosen.completions, chosen.panics) == ("python", "set so", None, 0)


@pytest.mark.parametrize("choice", [Settings.model_fields["transport"].default, "auto", "native"])
def test_native_code_is_used_where_it_is_there(choice: str) -> None:
    native = pytest.importorskip("cachefleet_native")
    chosen = choose_transport(choice, threads=2)  # type: ignore[arg-type]  # one of them
    assert (chosen.code, chosen.reason) == ("native", f"cachefleet_native {native.__version__}")
    assert chosen.completions is not None
    assert chosen.panics == 0


def test_without_native_code_python_serves_unless_native_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cachefleet_native", None)
    chosen = choose_transport("auto")
    assert (chosen.code, chosen.completions) == ("python", None)
    assert "cachefleet_native" in chosen.reason
    with pytest.raises(NativeError, match="cachefleet_native"):
        choose_transport("native")


def test_metrics_tell_the_code_and_its_panics() -> None:
    registry = CollectorRegistry()
    registry.register(TransportCollector(Transport("python", "why")))
    told = generate_latest(registry).decode()
    assert 'cachefleet_transport_info{code="python",reason="why"} 1.0' in told
    assert "cachefleet_transport_panics_total 0.0" in told
