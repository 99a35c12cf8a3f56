"""Sets members of a held request's body that come with word to answer: vLLM has parsed the body before."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from typing import Any, Final

from msgspec import UNSET

from cachefleet_core.engine.held_requests import LateMembers
from cachefleet_worker.plugin.capabilities import OFF
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import Process
from cachefleet_worker.plugin.prompts.held_prompt import FEATURE, held

_OPENAI: Final = "vllm.entrypoints.openai"
REQUESTS: Final = (
    (f"{_OPENAI}.chat_completion.protocol", "ChatCompletionRequest"),
    (f"{_OPENAI}.completion.protocol", "CompletionRequest"),
)
_METHOD: Final = "to_sampling_params"
"""What vLLM calls with a request once its prompt is rendered, and takes both members from."""
_UNCHANGED: Final = "cachefleet_unchanged"
_PROMPT_IDS: Final = "prompt_token_ids"
"""Member of transfer parameters by which vLLM renders; it takes them out then."""


def install(process: Process) -> bool:
    """Set late members in this process's requests; False where thresholds are not read from them."""
    if process.capabilities.mode("fields") == OFF:
        return False
    for module, name in REQUESTS:
        wrap = partial(_with_members, process.faults)
        wrap_method(getattr(import_module(module), name), _METHOD, wrap, mark=_UNCHANGED)
    return True


def _with_members(faults: Faults, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def to_sampling_params(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (prompt := held.get()) is not None:
            with faults.guard(FEATURE):
                set_members(self, prompt.members)
        return original(self, *args, **kwargs)

    return to_sampling_params


def set_members(request: Any, members: LateMembers) -> None:
    """Set members in a request of vLLM's."""
    if members.cache_hit_threshold is not UNSET:
        request.cache_hit_threshold = members.cache_hit_threshold
    if members.kv_transfer_params is not UNSET:
        given = members.kv_transfer_params
        request.kv_transfer_params = given and {name: given[name] for name in given if name != _PROMPT_IDS}
