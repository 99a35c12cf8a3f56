"""Has an engine go on with an answer as if it had made all of it: what another engine produced is output, no prompt.

Penalties count what is output, bounds on its length do, and a grammar has taken it. The API server names the ids in the
request's sampling parameters, by a member that none but processes with the worker key know. The engine core makes of it
a request that has produced them, as one that was preempted; so does the worker of vLLM's first model runner, which
keeps requests of its own. The second model runner takes them from the engine core.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
from collections.abc import Callable
from typing import Any, Final

from cachefleet_core.engine.answer_replay import Unrecorded
from cachefleet_core.engine.executors import LOCAL
from cachefleet_worker.plugin.capabilities import Capabilities
from cachefleet_worker.plugin.method_hooks import wrap_method
from cachefleet_worker.plugin.plugin_faults import Faults
from cachefleet_worker.plugin.plugin_process import NO_WORKER_KEY
from cachefleet_worker.plugin.settings import PluginSettings

FEATURE: Final = "restored_outputs"
_STOCK: Final = "cachefleet_unrestored"


def install(capabilities: Capabilities, faults: Faults, settings: PluginSettings) -> None:
    """Hook vLLM in this process, unless that is switched off."""
    key = settings.worker_key()
    if missing := settings.switched_off(FEATURE) or ("" if key else NO_WORKER_KEY):
        faults.off(FEATURE, missing)
        return
    from vllm.v1.request import Request  # noqa: PLC0415 - only where vLLM is
    from vllm.v1.structured_output import StructuredOutputManager  # noqa: PLC0415
    from vllm.v1.worker.gpu_input_batch import CachedRequestState  # noqa: PLC0415

    patch(Request, CachedRequestState, StructuredOutputManager, member(key))
    capabilities.add(FEATURE, "on")


def member(key: bytes) -> str:
    """Member of a request's extra arguments that has the ids: no client knows it."""
    return f"cachefleet_{hmac.digest(key, b'restored outputs', hashlib.sha256).hex()}"


def patch(request: type[Any], state: type[Any], grammars: type[Any], name: str) -> None:
    """Hook the engine core's request, a worker's, and the manager of grammars; earlier hooks are replaced."""
    made = functools.partial(_producing, name)
    present = request.__dict__["from_engine_core_request"].__func__
    stock = getattr(present, _STOCK, present)
    hook = made(stock)
    setattr(hook, _STOCK, stock)
    request.from_engine_core_request = classmethod(hook)
    wrap_method(state, "__post_init__", functools.partial(_having, name), mark=_STOCK)
    wrap_method(grammars, "_create_grammar", functools.partial(_taking, name), mark=_STOCK)


def restored(config: Any, *, on: bool) -> frozenset[Unrecorded]:
    """What an engine of this configuration of vLLM's goes on with, by what stands in the way elsewhere."""
    parallel = config.parallel_config
    backend = parallel.distributed_executor_backend
    backend = f"{backend.__module__}.{backend.__qualname__}" if isinstance(backend, type) else backend
    machines = getattr(parallel, "nnodes", 1)
    if not on or backend not in LOCAL or machines > 1 or parallel.pipeline_parallel_size > 1:
        return frozenset()
    outputs = config.structured_outputs_config
    thoughts = outputs.reasoning_parser and not outputs.enable_in_reasoning
    return frozenset({Unrecorded.PENALTIES} if thoughts else {Unrecorded.PENALTIES, Unrecorded.GRAMMAR})


def produced(params: Any, name: str) -> list[int]:
    """The ids that another engine produced; none for any other request."""
    extra = getattr(params, "extra_args", None)
    return list(extra[name]) if extra and name in extra else []


def _producing(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def from_engine_core_request(cls: Any, *args: Any, **named: Any) -> Any:
        made = stock(cls, *args, **named)
        if ids := produced(made.sampling_params, name):
            made.append_output_token_ids(ids)
            made.num_preemptions = 1  # more than the prompt may be cached
        return made

    return from_engine_core_request


def _having(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def post_init(self: Any) -> None:
        stock(self)
        if not self.output_token_ids and (ids := produced(self.sampling_params, name)):
            self.output_token_ids.extend(ids)

    return post_init


def _taking(name: str, stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def create_grammar(self: Any, request: Any) -> Any:
        grammar = stock(self, request)
        ids = produced(request.sampling_params, name)
        if ids and not grammar.accept_tokens(request.request_id, ids):
            raise ValueError("the grammar does not take what another engine produced by it")
        return grammar

    return create_grammar
