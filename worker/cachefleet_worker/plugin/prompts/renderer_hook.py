"""The hook in vLLM's renderer: records prompts for whoever asked for that, and has those of held requests wait."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.prompts.held_prompt import held
from cachefleet_worker.plugin.prompts.recorded_prompt import recorded
from cachefleet_worker.plugin.settings import PluginSettings

FEATURE: Final = "prompts"
RENDERS: Final = ("render_chat_async", "render_cmpl_async")
_STOCK: Final = "cachefleet_unhooked"


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> None:
    """Hook vLLM's renderers in this process, unless that is switched off. Raises where they are otherwise."""
    if off := settings.switched_off(FEATURE):
        faults.off(FEATURE, off)
        return
    from vllm.renderers.base import BaseRenderer  # noqa: PLC0415 - only where vLLM runs

    if missing := unknown(BaseRenderer):
        capabilities.add(FEATURE, OFF, missing)
        return
    patch(BaseRenderer, faults)
    capabilities.add(FEATURE, "on")


def unknown(renderer: type[Any]) -> str:
    """The method that is not as the hook expects it, as a message; "" where all are."""
    for name in RENDERS:
        if not inspect.iscoroutinefunction(getattr(renderer, name, None)):  # parameters: see compat
            return f"this vLLM's renderer has no {name} as known here"
    return ""


def patch(renderer: type[Any], faults: Faults) -> None:
    """Hook ``renderer`` and its subclasses; an earlier hook is replaced."""
    for name in RENDERS:
        wrap_method(renderer, name, functools.partial(_hooked, faults), mark=_STOCK)


def _hooked(faults: Faults, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await stock(self, *args, **kwargs)
        if (record := recorded.get()) is not None and faults.on(FEATURE):
            with faults.guard(FEATURE):
                record.add(result)
        if (waiting := held.get()) is not None:
            await waiting.rendered(result)
        return result

    return render
