"""The plugin's part of one process of vLLM: settings, capabilities, and the patches every process needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.engine_calls import install_method
from cachefleet_worker.plugin.faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

PATCHES: Final[Mapping[str, tuple[str, ...]]] = {
    "finish": ("finish_reason", "streaming"),
    "fields": ("fields",),
    "tokens": ("tokens",),
}
"""Modules with ``install(capabilities, faults, settings)``, in the order they are installed, and their features."""


@dataclass(frozen=True, slots=True)
class Process:
    """What the features of one process share."""

    settings: PluginSettings
    capabilities: Capabilities
    faults: Faults
    parts: dict[str, Any]
    """What each patch gave back, by module."""


@cache
def this_process() -> Process:
    """The plugin's part of this process, made at first use."""
    capabilities = Capabilities()
    return Process(PluginSettings.from_environment(), capabilities, Faults(capabilities), {})


def install() -> None:
    """Apply every patch; one that fails is off, the others stay."""
    process = this_process()
    with process.faults.guard("routes"):
        install_method()
    for module, features in PATCHES.items():
        with process.faults.guard(*features):
            _install(module, features, process)


def _install(module: str, features: tuple[str, ...], process: Process) -> None:
    missing = next(filter(None, map(unmet, features)), "")
    if missing:
        for feature in features:
            process.faults.off(feature, missing)
        return
    installed = import_module(f".{module}", __package__).install(process.capabilities, process.faults, process.settings)
    process.parts[module] = installed
