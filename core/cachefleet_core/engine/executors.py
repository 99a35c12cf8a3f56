"""Executors of vLLM by name: where the model runs. Needs only what every vLLM has: the plugin reads it, too."""

from __future__ import annotations

from typing import Final

IN_PROCESS: Final = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The model runs in the engine core's process, as on one GPU. vLLM's choice on CPUs is one process more, which spins
while it waits: a quarter of a core and 800 MB for each idle engine. It replaces its own name for this one, "uni"."""
LOCAL: Final = frozenset({"mp", "uni", IN_PROCESS})
"""The model's processes are this machine's, so they have the plugin and the worker key."""
