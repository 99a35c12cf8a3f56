"""vLLM's scheduler with the plugin's features; ``--scheduler-cls`` names ``create``.

vLLM calls ``create`` instead of a class. The base class is chosen as vLLM would; the overrides are thin and call the
features, and a fault in one switches it off (plugin_faults.py).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import FRONTEND, OFF, summary
from cachefleet_worker.plugin.compat import other_frontend, unmet
from cachefleet_worker.plugin.engine_state import EngineState
from cachefleet_worker.plugin.gate.scheduler_hooks import hook_of, hooked
from cachefleet_worker.plugin.settings import PluginSettings

log = logging.getLogger("vllm.cachefleet")

FEATURES: Final = {
    "gate": "gate.gated_admission",
    "budget": "budget.budget",
    "snapshot": "snapshot.snapshot",
    "adapters": "adapters.adapter_revisions",
    "flush": "flush.cache_flush",
}
"""Modules with ``install(scheduler, state)`` by feature, in the order they are installed."""


def create(**arguments: Any) -> Any:
    """The scheduler for vLLM's arguments; the stock one where ours cannot be made."""
    base = stock_class(arguments["vllm_config"])
    try:
        scheduler = _fleet_class(base)(**arguments)
    except Exception:  # the engine starts whatever is wrong with the plugin
        log.exception("cachefleet: the scheduler is stock vLLM's, no feature of the engine is on")
        return base(**arguments)
    install(scheduler)
    return scheduler


def stock_class(vllm_config: Any) -> Any:
    """The class that vLLM uses without the plugin."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: PLC0415
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415

    return AsyncScheduler if vllm_config.scheduler_config.async_scheduling else Scheduler


@cache
def _fleet_class(base: Any) -> Any:
    """``base`` with the plugin's overrides."""

    class FleetScheduler(_gated_class(base)):  # type: ignore[misc]
        cachefleet: EngineState | None = None

        def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
            done: bool = super().reset_prefix_cache(*args, **kwargs)
            if self.cachefleet is not None:
                self.cachefleet.publish_events()
            return done

    return FleetScheduler


def _gated_class(base: Any) -> Any:
    """``base`` with the gate's hook; the engine stays awake while a refusal's answer is pending."""
    hook = hook_of(base)

    class GatedScheduler(hooked(base, hook)):  # type: ignore[misc]
        cachefleet_admission: Any = None
        cachefleet_hook = hook

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            plan = super().schedule(*args, **kwargs)
            if self.cachefleet_admission is not None:
                self.cachefleet_admission.settle()
            return plan

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            outputs = super().update_from_output(*args, **kwargs)
            if self._cachefleet_pending():
                self.cachefleet_admission.deliver(outputs)
            return outputs

        def has_requests(self) -> bool:
            return self._cachefleet_pending() or bool(super().has_requests())

        def has_unfinished_requests(self) -> bool:
            return self._cachefleet_pending() or bool(super().has_unfinished_requests())

        def _cachefleet_pending(self) -> bool:
            return self.cachefleet_admission is not None and self.cachefleet_admission.pending

    return GatedScheduler


def install(scheduler: Any) -> EngineState:
    """Attach the plugin's state and features to a new scheduler."""
    state = EngineState(scheduler, PluginSettings.from_environment(), rank=_rank(scheduler))
    scheduler.cachefleet = state
    for feature, module in FEATURES.items():
        with state.faults.guard(feature):
            if missing := unmet(feature):
                state.faults.off(feature, missing)
            else:
                _installer(module)(scheduler, state)
    if state.settings.policy_file is not None:
        with state.faults.guard("policy"):
            state.apply_file(state.settings.policy_file)
    if fault := other_frontend(os.environ):
        state.capabilities.add(FRONTEND, OFF, fault)
        log.error("cachefleet: %s", fault)
    log.info("cachefleet %s, rank %d: %s", version("cachefleet"), state.rank, summary(state.capabilities.document()))
    return state


def _installer(name: str) -> Callable[[Any, EngineState], object]:
    installer: Callable[[Any, EngineState], object] = import_module(f".{name}", __package__).install
    return installer


def _rank(scheduler: Any) -> int:
    return int(getattr(scheduler.vllm_config.parallel_config, "data_parallel_index", 0))
