"""Fetches what an adapter (LoRA) is loaded from while the engine runs, before vLLM's engine reads it.

vLLM would fetch a hub id in its engine, which answers nobody meanwhile, and knows no revision of one. Here it is
fetched in a thread of the API server, and the adapter's path is the folder, whose name has the commit: blocks of
different commits have different keys.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

from cachefleet_core.pool.adapter_options import RUNTIME_ADAPTERS, allows_loading
from cachefleet_worker.adapter_weights import AdapterError, folder_of
from cachefleet_worker.plugin.plugin_process import Process

FEATURE: Final = "adapter_loading"

Load = Callable[..., Awaitable[Any]]


def install(state: Any, process: Process) -> None:
    """Watch the loading of an engine that serves adapters; nothing otherwise."""
    if getattr(getattr(state, "vllm_config", None), "lora_config", None) is None:
        return
    models: Any = getattr(state, "openai_serving_models", None)
    if off := process.settings.switched_off(FEATURE):
        process.faults.off(FEATURE, off)
    elif not allows_loading(os.environ.get(RUNTIME_ADAPTERS, "")):
        process.faults.off(FEATURE, f"{RUNTIME_ADAPTERS} is not set: adapters are those of the engine's start")
    elif not hasattr(models, "load_lora_adapter"):
        process.faults.off(FEATURE, "this vLLM loads adapters elsewhere")
    else:
        models.load_lora_adapter = _fetching(models.load_lora_adapter, process)
        process.capabilities.add(FEATURE, "on")


def _fetching(load: Load, process: Process) -> Load:
    async def fetched(request: Any, *args: Any, **kwargs: Any) -> Any:
        if process.faults.on(FEATURE):
            try:
                folder = await asyncio.to_thread(folder_of, request.lora_path)
            except AdapterError as error:
                raise _refusal(str(error)) from error
            request = request.model_copy(update={"lora_path": folder})
        return await load(request, *args, **kwargs)

    return fetched


def _refusal(message: str) -> Exception:
    exceptions: Any = import_module("starlette.exceptions")
    refusal: Exception = exceptions.HTTPException(502, detail=message)
    return refusal
