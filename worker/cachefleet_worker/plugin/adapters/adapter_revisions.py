"""Tells in block events which revision of an adapter (LoRA) a block was made with.

vLLM's hash of a block has the adapter's name and path; its event has the name, and a number that a name keeps when it
is loaded from another path. That number, which vLLM calls deprecated, is replaced by the revision in each event of a
request with an adapter, where the pool makes it: the request is known there alone. What a revision is:
cachefleet_core/block_identity/adapters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from cachefleet_core.block_identity.adapters import path_revision
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.engine_state import EngineState

FEATURE: Final = "adapters"
MODE: Final = "revision"
MAKERS: Final = ("cache_full_blocks", "emit_cached_block_events", "cache_partial_block")
"""Methods of vLLM's pool that make events of stored blocks, whose first argument is the request."""
_LEAST: Final = MAKERS[0]

revision_of = lru_cache(4096)(path_revision)


def install(scheduler: Any, state: EngineState) -> None:
    """Watch the pool of an engine that serves adapters; nothing otherwise."""
    if getattr(scheduler.vllm_config, "lora_config", None) is None or not state.enabled(FEATURE):
        return
    pool = scheduler.kv_cache_manager.block_pool
    if not hasattr(pool, _LEAST) or not hasattr(pool, "kv_event_queue"):
        state.capabilities.add(FEATURE, OFF, "this vLLM makes its block events elsewhere")
        return
    for name in MAKERS:
        if hasattr(pool, name):
            setattr(pool, name, _telling(getattr(pool, name), pool, state))
    state.capabilities.add(FEATURE, MODE)


def _telling(make: Callable[..., Any], pool: Any, state: EngineState) -> Callable[..., Any]:
    """A method that makes events, followed by the revision in those that it made."""

    def method(*args: Any, **kwargs: Any) -> Any:
        adapter = (kwargs["request"] if "request" in kwargs else args[0]).lora_request
        if adapter is None:
            return make(*args, **kwargs)
        before = len(pool.kv_event_queue)
        made = make(*args, **kwargs)
        if state.faults.on(FEATURE):
            with state.faults.guard(FEATURE):
                for event in pool.kv_event_queue[before:]:
                    tell(event, adapter)
        return made

    return method


def tell(event: Any, adapter: Any) -> None:
    """Put an adapter's revision into the event of a stored block."""
    if getattr(event, "lora_name", None) is not None:
        event.lora_id = revision_of(adapter.lora_path)
