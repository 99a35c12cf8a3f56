"""The hook in vLLM's renderer: calls that a kept prompt answers are not made; those for keys are recorded."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.prompts.held_prompt import held
from cachefleet_worker.plugin.prompts.offered_prompt import offered, recorded
from cachefleet_worker.plugin.prompts.prompt_store import PromptStore
from cachefleet_worker.plugin.prompts.render_call import RenderedPrompt, call, rendered
from cachefleet_worker.plugin.settings import PluginSettings

FEATURE: Final = "prompts"
RENDERS: Final = ("render_chat_async", "render_cmpl_async")
_LEFT_OUT: Final = frozenset({"self", "skip_mm_cache"})
"""Not part of what shapes a prompt of text."""
_STOCK: Final = "cachefleet_unhooked"


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> PromptStore | None:
    """Hook vLLM's renderers in this process; None where that is switched off. Raises where they are otherwise."""
    if FEATURE in settings.plugin_off:
        faults.off(FEATURE, "switched off by CACHEFLEET_PLUGIN_OFF")
        return None
    from vllm.renderers.base import BaseRenderer  # noqa: PLC0415 - only where vLLM runs

    if missing := unknown(BaseRenderer):
        capabilities.add(FEATURE, OFF, missing)
        return None
    patch(BaseRenderer, faults)
    capabilities.add(FEATURE, "on")
    return PromptStore(max_bytes=settings.prompts_bytes)


def unknown(renderer: type[Any]) -> str:
    """The method that is not as the hook expects it, as a message; "" where all are."""
    for name in RENDERS:
        if not inspect.iscoroutinefunction(getattr(renderer, name, None)):  # parameters: see compat
            return f"this vLLM's renderer has no {name} as known here"
    return ""


def patch(renderer: type[Any], faults: Faults) -> None:
    """Hook ``renderer`` and its subclasses; an earlier hook is replaced."""
    for name in RENDERS:
        wrap_method(renderer, name, functools.partial(_hooked, name, faults), mark=_STOCK)


def _hooked(name: str, faults: Faults, stock: Callable[..., Any]) -> Callable[..., Any]:
    answer = _answering(name, faults, stock)

    @functools.wraps(stock)
    async def render(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await answer(self, args, kwargs)
        if (waiting := held.get()) is not None:
            await waiting.rendered(result)
        return result

    return render


def _answering(name: str, faults: Faults, stock: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stock)

    def described(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = signature.bind(self, *args, **kwargs).arguments
        return call(name, {each: value for each, value in given.items() if each not in _LEFT_OUT})

    def kept(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        offer = offered.get()
        if offer is None or offer.taken or not faults.on(FEATURE):
            return None
        arrival = time.time()
        with faults.guard(FEATURE):
            prompt = offer.take(described(self, args, kwargs))
            if prompt is not None:
                _note(prompt)
                return prompt.result(arrival=arrival)
        return None

    async def made(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if recorded.get() is None or not faults.on(FEATURE):
            return await stock(self, *args, **kwargs)
        given = prompt = None
        with faults.guard(FEATURE):  # before the call, which may change what it is given
            given = described(self, args, kwargs)
        result = await stock(self, *args, **kwargs)
        with faults.guard(FEATURE):
            prompt = rendered(given, result) if given is not None else None
        _note(prompt)
        return result

    async def answer(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return kept(self, args, kwargs) or await made(self, args, kwargs)

    return answer


def _note(prompt: RenderedPrompt | None) -> None:
    """Record what a call has rendered, where that is asked for."""
    if (record := recorded.get()) is not None:
        record.add(prompt)
