"""Puts memoised tokenisation into vLLM's renderers in this process."""

from __future__ import annotations

import random

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.tokens.cached_encoder import FEATURE, CachedEncoder
from cachefleet_worker.plugin.tokens.renderer import HookError, patch


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> CachedEncoder | None:
    """Patch vLLM's renderers in this process; None where that fails or is switched off. Never raises."""
    if off := settings.switched_off(FEATURE):
        faults.off(FEATURE, off)
        return None
    cache = None
    with faults.guard(FEATURE):
        from vllm.renderers.base import BaseRenderer  # noqa: PLC0415 - only where vLLM runs

        made = CachedEncoder(
            capabilities,
            faults,
            max_bytes=settings.tokens_cache_bytes,
            sample_ratio=settings.tokens_sample_ratio,
            rng=random.Random(),  # noqa: S311 - picks samples
        )
        try:
            patch(BaseRenderer, made, faults)
            cache = made
        except HookError as error:
            capabilities.add(FEATURE, OFF, str(error))
    return cache
