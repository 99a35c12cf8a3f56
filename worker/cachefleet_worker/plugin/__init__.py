"""The plugin for an unmodified vLLM: cache-hit gate, hand-back of preempted requests, a budget for idle cached blocks,
snapshots, memoised tokenisation, block keys. docs/worker.md describes each.

``register`` is vLLM's general plugin: each vLLM process calls it before anything is built.

adapters/            adapters: their revisions in events, and their fetching while the engine runs
budget/              bounds idle cached blocks, in vLLM's block pool
conversations/       turns of conversations, kept so that requests bring only what is new
flush/               evicts idle cached blocks that somebody names
gate/                refuses requests of which too little is cached; hands back preempted ones
keys/                block keys and safe boundaries of a request body, for routing
prompts/             rendered prompts, kept for the request that follows its keys
replay/              answers that are recorded, and gone on with where another worker broke off
snapshot/            snapshots of the resident blocks, and heartbeats in the event stream
tokens/              memoised tokenisation
usage/               what answers tell of their tokens
access_guard         refuses what comes without the worker key, whatever the path
asgi                 requests and responses on plain ASGI
capabilities         mode of each feature, with the reason where it is off
capability_document  the answer of ``/v1/fleet/capabilities``
compat               which vLLM this is, and what each feature needs of it
detokenizer_hook     begins an answer's text from the prompt's last tokens
engine_calls         calls from the API server to its engines
engine_state         the plugin's state in one engine: policy, stats, calls
method_hooks         wraps methods of vLLM's classes
plugin_faults        switches a feature off after a fault, so that none reaches vLLM
live_policy          the policy in force
plugin_process       the plugin's state in one process, and its patches
routes               the routes under ``/v1/fleet``
scheduler            vLLM's scheduler with the plugin's features
settings             environment variables
"""

from __future__ import annotations

import logging

log = logging.getLogger("vllm.cachefleet")

_registered = False


def register() -> None:
    """Install the plugin in this process. Never raises; idempotent."""
    global _registered  # noqa: PLW0603 - once per process
    if _registered:
        return
    _registered = True
    from cachefleet_worker.plugin.plugin_process import install  # noqa: PLC0415 - vLLM is half imported when it looks for plugins

    install()
