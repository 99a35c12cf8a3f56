"""vLLM's options and variables for adapters (LoRA), and folders of weights, shared with the plugin inside vLLM."""

from __future__ import annotations

from typing import Final

ADAPTERS: Final = "--lora-modules"
RUNTIME_ADAPTERS: Final = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
"""Variable of vLLM that opens its routes for loading adapters while it runs."""
REVISION: Final = "@"
"""Between a hub id and a revision of it, where vLLM takes one word for both."""
PATH_STARTS: Final = ("/", ".", "~")
"""How the source of an adapter begins that is a folder, not a hub id."""
MODEL_FOLDER: Final = "/mnt/model"
"""Where an engine's container has the image of its model's weights."""
ADAPTERS_FOLDER: Final = "/mnt/adapters"
"""Where it has those of adapters, in folders of their own."""
_TRUE: Final = frozenset({"1", "true"})


def allows_loading(value: str) -> bool:
    """Whether vLLM opens its routes for loading adapters at this value of RUNTIME_ADAPTERS."""
    return value.strip().lower() in _TRUE
