"""Exact memoised tokenisation in vLLM's render path, and the safe boundaries of a rendered chat.

A text is cut at special tokens (added.py, splitter.py), long parts further (chunks.py); each part is encoded once and
remembered under its tenant's salt (memo.py, parts.py). That is on only where the tokenizer's description proves it
exact (plan.py) and a self-test agrees (selftest.py); samples are held against the plain encoder ever after
(token_memo.py). Everything else falls through to the plain encoder. renderer.py and salts.py are the hook in vLLM.
"""

from __future__ import annotations

import random

from cachefleet_worker.plugin.capabilities import OFF, Capabilities
from cachefleet_worker.plugin.faults import Faults
from cachefleet_worker.plugin.settings import PluginSettings
from cachefleet_worker.plugin.tokens.boundaries import deepest, propose, verified
from cachefleet_worker.plugin.tokens.renderer import HookError, patch
from cachefleet_worker.plugin.tokens.token_memo import FEATURE, TokenMemo

__all__ = ["TokenMemo", "deepest", "install", "propose", "verified"]


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> TokenMemo | None:
    """Patch vLLM's renderers in this process; None where that cannot be or is not wanted. Never raises."""
    if FEATURE in settings.plugin_off:
        faults.off(FEATURE, "switched off by CACHEFLEET_PLUGIN_OFF")
        return None
    memo = None
    with faults.guard(FEATURE):
        from vllm.renderers.base import BaseRenderer  # noqa: PLC0415 - only where vLLM runs

        made = TokenMemo(
            capabilities,
            faults,
            max_bytes=settings.tokens_memo_bytes,
            sample_ratio=settings.tokens_sample_ratio,
            rng=random.Random(),  # noqa: S311 - picks samples
        )
        try:
            patch(BaseRenderer, made, faults)
            memo = made
        except HookError as error:
            capabilities.add(FEATURE, OFF, str(error))
    return memo
