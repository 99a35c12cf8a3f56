"""The plugin's state in one vLLM process: settings, capabilities, and the patches that every process needs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.compat import unmet
from cachefleet_worker.plugin.engine_calls import install_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings

log = logging.getLogger("vllm.cachefleet")


NO_WORKER_KEY: Final = "CACHEFLEET_WORKER_KEY_FILE names no key"
NO_ENGINE: Final = "this server has no engine"


@dataclass(frozen=True, slots=True)
class Patch:
    """A module with ``install(capabilities, faults, settings)``, and the features that need it."""

    module: str
    features: tuple[str, ...]


PATCHES: Final[Mapping[str, Patch]] = {
    "finish": Patch("gate.finish_reason", ("finish_reason", "streaming")),
    "fields": Patch("gate.request_fields", ("fields",)),
    "tokens": Patch("tokens.hook_installation", ("tokens",)),
    "prompts": Patch("prompts.renderer_hook", ("prompts",)),
    "detokenizer": Patch("detokenizer_hook", ("detokenizer",)),
    "restored": Patch("replay.restored_outputs", ("restored_outputs",)),
}
"""Patches by name, in the order they are installed."""


@dataclass(frozen=True, slots=True)
class Process:
    """What the features of one process share."""

    settings: PluginSettings
    capabilities: Capabilities
    faults: Faults
    parts: dict[str, Any]
    """What each patch returned, by its name."""

    def keyless(self) -> str:
        """What is missing where no worker key is configured, or it cannot be read; "" where there is one."""
        return "" if self.worker_key() else NO_WORKER_KEY

    def worker_key(self) -> bytes:
        """The worker key; b"" where none is configured, or it cannot be read: then nothing that needs it opens."""
        try:
            return self.settings.worker_key()
        except OSError as error:
            log.error("cachefleet: worker key not readable, what needs it stays shut: %s", error)  # noqa: TRY400
            return b""


def engineless(has_engine: bool) -> str:  # noqa: FBT001 - vLLM's own word, beside the other things that may be missing
    """What is missing in a server that only renders; "" in one with an engine."""
    return "" if has_engine else NO_ENGINE


@cache
def this_process() -> Process:
    """The plugin's state in this process, made at first use."""
    capabilities = Capabilities()
    return Process(PluginSettings.from_environment(), capabilities, Faults(capabilities), {})


def install() -> None:
    """Apply every patch; one that fails is switched off, the others stay."""
    process = this_process()
    with process.faults.guard("routes"):
        install_method()
    for name, patch in PATCHES.items():
        with process.faults.guard(*patch.features):
            _install(name, patch, process)


def _install(name: str, patch: Patch, process: Process) -> None:
    missing = next(filter(None, map(unmet, patch.features)), "")
    if missing:
        for feature in patch.features:
            process.faults.off(feature, missing)
        return
    module = import_module(f".{patch.module}", __package__)
    process.parts[name] = module.install(process.capabilities, process.faults, process.settings)
