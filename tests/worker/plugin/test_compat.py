from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from cachefleet_worker.plugin import compat, scheduler
from cachefleet_worker.plugin.compat import Need, untested
from cachefleet_worker.plugin.settings import FEATURES


class Record(msgspec.Struct):
    first: int
    second: int = 0


@dataclass
class Plain:
    third: int


class Owner:
    def method(self, one: int, *, two: int = 0) -> None: ...


@pytest.fixture
def _module(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("made_up")
    module.Record, module.Plain, module.Owner, module.VALUE = Record, Plain, Owner, ()
    module.Model = SimpleNamespace(model_fields={"messages": 1})
    monkeypatch.setitem(sys.modules, "made_up", module)


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("target", "takes", "missing"),
    [
        ("made_up:Owner.method", ("one", "two"), ""),
        ("made_up:Owner.method", ("one", "three"), "made_up:Owner.method(three)"),
        ("made_up:Owner.gone", (), "made_up:Owner.gone"),
        ("made_up.gone:Owner", (), "made_up.gone:Owner"),
        ("made_up:Record", ("first", "second"), ""),
        ("made_up:Record", ("fourth",), "made_up:Record(fourth)"),
        ("made_up:Plain", ("third",), ""),
        ("made_up:Model", ("messages",), ""),
        ("made_up:Model", ("prompt",), "made_up:Model(prompt)"),
        ("made_up:VALUE", (), ""),
        ("made_up:VALUE", ("x",), "made_up:VALUE(x)"),
    ],
)
def test_a_need_says_what_is_not_there(target: str, takes: tuple[str, ...], missing: str) -> None:
    assert Need(target, takes).missing() == missing


@pytest.mark.usefixtures("_module")
@pytest.mark.parametrize(
    ("target", "instead", "missing"),
    [
        ("made_up:Owner.gone", "made_up:Owner.method", ""),
        ("made_up:Owner.method", "made_up:Owner.gone", ""),
        ("made_up:Owner.gone", "made_up:Gone", "made_up:Owner.gone"),
    ],
)
def test_what_serves_as_well_will_do(target: str, instead: str, missing: str) -> None:
    assert Need(target, instead=Need(instead)).missing() == missing


@pytest.mark.usefixtures("_module")
def test_a_feature_names_all_that_it_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = {"gate": (Need("made_up:Owner"), Need("made_up:Gone"), Need("nowhere:X")), "budget": ()}
    monkeypatch.setattr(compat, "NEEDS", needs)
    monkeypatch.setattr(compat, "engine_version", lambda: "0.40.0")
    compat.unmet.cache_clear()
    try:
        assert compat.unmet("gate") == "vLLM 0.40.0 has no made_up:Gone, nowhere:X"
        assert compat.unmet("budget") == compat.unmet("heartbeat") == ""
    finally:
        compat.unmet.cache_clear()


def test_the_table_speaks_of_features_that_there_are() -> None:
    assert set(compat.NEEDS) - {"fields"} <= FEATURES


@pytest.mark.parametrize("version", ["0.28.0", "0.28.1.post1", "0.32.0+cpu", "0.33.9", "v0.30.0"])
def test_versions_of_the_range_are_tested_ones(version: str) -> None:
    assert untested(version) == ""


@pytest.mark.parametrize(
    ("version", "named"),
    [("0.27.1", "0.27.1"), ("0.34.0", "0.34.0"), ("1.0", "1.0"), ("", "unknown"), ("main", "main")],
)
def test_others_are_said_to_be_untested(version: str, named: str) -> None:
    assert untested(version) == f"untested version {named}, tested are 0.28 to 0.33"


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("feature", sorted(compat.NEEDS))
def test_this_vllm_has_what_each_feature_needs(feature: str) -> None:
    assert compat.unmet(feature) == ""


@pytest.mark.parametrize(("value", "other"), [(None, False), ("", False), ("0", False), ("1", True), (" 1 ", True)])
def test_a_frontend_without_python_is_told_with_what_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str | None, *, other: bool
) -> None:
    monkeypatch.setattr(scheduler, "FEATURES", {})
    monkeypatch.delenv(compat.RUST_FRONTEND, raising=False)
    if value is not None:
        monkeypatch.setenv(compat.RUST_FRONTEND, value)
    parallel = SimpleNamespace(data_parallel_index=0)
    made: Any = SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel), kv_cache_config=None)
    state = scheduler.install(made)
    told = {each.feature: (each.mode, each.reason) for each in state.capabilities.document()}
    assert told == ({"frontend": ("off", compat.NO_PYTHON)} if other else {})
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert said == ([f"cachefleet: {compat.NO_PYTHON}"] if other else [])
    assert "vllm_xargs" in compat.NO_PYTHON
