"""What vLLM lacks, added to an unmodified vLLM: cache-hit gate, hand-back of preempted requests, a budget for idle
cached blocks, snapshots, memoised tokenisation, block keys.

``register`` is vLLM's general plugin: it runs in each of its processes before anything is built. Files that decide are
pure; files that touch vLLM's internals are thin and guarded (faults.py). docs/worker.md describes each feature.
"""

from __future__ import annotations

import logging

log = logging.getLogger("vllm.cachefleet")

_registered = False


def register() -> None:
    """Install the plugin in this process. Never raises; called again it does nothing."""
    global _registered  # noqa: PLW0603 - once for each process
    if _registered:
        return
    _registered = True
    from cachefleet_worker.plugin.process import install  # noqa: PLC0415 - vLLM is half imported when it looks for plugins

    install()
