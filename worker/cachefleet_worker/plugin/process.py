"""The plugin's part of one process of vLLM: settings, capabilities, and the patches every process needs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from .capabilities import Capabilities
from .engine import install_method
from .faults import Faults
from .settings import PluginSettings, SettingsError

log = logging.getLogger("vllm.cachefleet")

PATCHES: Final = ("finish", "fields", "tokens")
"""Modules with ``install(capabilities, faults, settings)``, in the order they are installed."""


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
    return Process(_settings(capabilities), capabilities, Faults(capabilities), {})


def install() -> None:
    """Apply every patch; one that fails is off, the others stay."""
    process = this_process()
    with process.faults.guard("routes"):
        install_method()
    for name in PATCHES:
        with process.faults.guard(name):
            module = import_module(f".{name}", __package__)
            process.parts[name] = module.install(process.capabilities, process.faults, process.settings)


def _settings(capabilities: Capabilities) -> PluginSettings:
    try:
        return PluginSettings.from_environment()
    except SettingsError as error:
        log.error("cachefleet: %s; defaults are used and the routes stay shut", error)  # noqa: TRY400 - no trace needed
        capabilities.add("routes", "off", str(error))
        return PluginSettings()
