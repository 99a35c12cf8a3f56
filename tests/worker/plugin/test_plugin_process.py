from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import cachefleet_worker.plugin
from cachefleet_worker.plugin import plugin_process
from tests.worker.plugin import asked


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> plugin_process.Process:
    """A process whose patches are made up: one that works, one that fails, one whose vLLM lacks something."""
    own = asked.process()
    monkeypatch.setattr(plugin_process, "this_process", lambda: own)
    monkeypatch.setattr(plugin_process, "install_method", lambda: None)
    monkeypatch.setattr(plugin_process, "unmet", lambda feature: "vLLM 9 has no X" if feature == "lacking" else "")
    patches = {"works": ("good",), "fails": ("bad", "worse"), "lacks": ("fine", "lacking"), "absent": ("gone",)}
    made = {name: plugin_process.Patch(name, features) for name, features in patches.items()}
    monkeypatch.setattr(plugin_process, "PATCHES", made)
    for name in ("works", "fails", "lacks"):
        module: Any = ModuleType(name)
        module.install = _failing if name == "fails" else _working
        monkeypatch.setitem(sys.modules, f"cachefleet_worker.plugin.{name}", module)
    return own


def _working(capabilities: Any, *_: object) -> str:
    capabilities.add("good", "on")
    return "part"


def _failing(*_: object) -> None:
    raise ZeroDivisionError


def test_each_patch_is_installed_whatever_becomes_of_the_others(own: plugin_process.Process) -> None:
    plugin_process.install()
    assert own.parts == {"works": "part"}
    assert {each.feature: (each.mode, each.reason) for each in own.capabilities.document()} == {
        "good": ("on", ""),
        "bad": ("off", "fault: ZeroDivisionError"),
        "worse": ("off", "fault: ZeroDivisionError"),
        "fine": ("off", "vLLM 9 has no X"),
        "lacking": ("off", "vLLM 9 has no X"),
        "gone": ("off", "fault: ModuleNotFoundError"),
    }


def test_an_engine_without_the_way_in_has_its_patches_all_the_same(
    own: plugin_process.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin_process, "install_method", _failing)
    plugin_process.install()
    assert own.parts == {"works": "part"}
    assert own.capabilities.mode("routes") == "off"


def test_registering_again_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(plugin_process, "install", lambda: calls.append(1))
    monkeypatch.setattr(cachefleet_worker.plugin, "_registered", False)
    cachefleet_worker.plugin.register()
    cachefleet_worker.plugin.register()
    assert calls == [1]
