"""Which vLLM this is, and whether it has what each feature hooks into.

What a feature needs is checked on classes and signatures, not by version, inside and outside the range of tested
versions. A feature that lacks something is off, with the missing name as reason. Whether a hook also works, each
feature tests when it is installed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import Final

OLDEST: Final = (0, 28)
NEWEST: Final = (0, 33)
"""Range of tested versions, both ends included."""

RUST_FRONTEND: Final = "VLLM_USE_RUST_FRONTEND"
NO_PYTHON: Final = (
    f"{RUST_FRONTEND} is set, and vLLM's other frontend runs no Python: unset it. Until then only the engine core has"
    " the plugin: its gate for requests with the threshold in vllm_xargs, its budget and its events with heartbeats;"
    " all other features are off, and nobody can ask for a snapshot or change the policy"
)

_SCHEDULER: Final = "vllm.v1.core.sched.scheduler:Scheduler"
_POOL: Final = "vllm.v1.core.block_pool:BlockPool"
_MANAGER: Final = "vllm.v1.core.kv_cache_manager:KVCacheManager"
_RENDERER: Final = "vllm.renderers.base:BaseRenderer"
_OPENAI: Final = "vllm.entrypoints.openai"
_CLIENT: Final = "vllm.v1.engine.async_llm"
_OUTPUTS: Final = "vllm.v1.engine.output_processor"
_ANTHROPIC: Final = "vllm.entrypoints.anthropic.serving"
_MESSAGES: Final = f"{_ANTHROPIC}:AnthropicServingMessages"


@dataclass(frozen=True, slots=True)
class Need:
    """Something of vLLM, as ``module:attribute``, and the parameters or fields that it must have."""

    target: str
    takes: tuple[str, ...] = ()
    instead: Need | None = None
    """What serves as well."""

    def missing(self) -> str:
        """What is missing; "" where nothing is."""
        if self.instead is not None and not self.instead.missing():
            return ""
        return self._missing()

    def _missing(self) -> str:
        module, _, path = self.target.partition(":")
        try:
            found = attrgetter(path)(import_module(module))
        except (ImportError, AttributeError):
            return self.target
        if not self.takes:
            return ""
        names = parameters(found)
        lacking = [name for name in self.takes if name not in names]
        return f"{self.target}({', '.join(lacking)})" if lacking else ""


NEEDS: Final[Mapping[str, tuple[Need, ...]]] = {
    "gate": (
        Need(f"{_SCHEDULER}.schedule"),
        Need(f"{_SCHEDULER}.update_from_output", ("scheduler_output", "model_runner_output")),
        Need(f"{_SCHEDULER}.finish_requests", ("request_ids", "finished_status")),
        Need(f"{_SCHEDULER}.has_requests"),
        Need(f"{_MANAGER}.get_computed_blocks", ("request",)),
        Need("vllm.v1.request:Request", ("request_id", "sampling_params")),
        Need(
            "vllm.v1.engine:EngineCoreOutput",
            ("request_id", "new_token_ids", "finish_reason", "stop_reason", "kv_transfer_params"),
        ),
        Need("vllm.v1.engine:EngineCoreOutputs", ("outputs",)),
    ),
    "preemption": (Need("vllm.v1.request:RequestStatus.PREEMPTED"),),
    "budget": (
        Need(f"{_POOL}.free_blocks", ("ordered_blocks",)),
        Need(f"{_POOL}.touch", ("blocks",)),
        Need(f"{_POOL}.cache_full_blocks", ("request", "blocks", "num_cached_blocks", "num_full_blocks")),
        Need(f"{_POOL}.get_new_blocks", ("num_blocks",)),
        Need(f"{_POOL}.evict_blocks", ("block_ids",)),
        Need(f"{_POOL}.reset_prefix_cache"),
        Need(f"{_POOL}._maybe_evict_cached_block", ("block",)),
    ),
    "snapshot": (
        Need(f"{_MANAGER}.take_events"),
        Need("vllm.distributed.kv_events:KVEventBatch", ("ts", "events")),
        Need("vllm.distributed.kv_events:BlockStored", ("block_hashes", "parent_block_hash", "token_ids")),
        Need("vllm.distributed.kv_events:BlockRemoved", ("block_hashes",)),
        Need("vllm.distributed.kv_events:AllBlocksCleared"),
    ),
    "finish_reason": (
        Need("vllm.v1.engine:FinishReason.STOP"),
        Need("vllm.v1.engine:FINISH_REASON_STRINGS"),
        Need("vllm.v1.request:RequestStatus.FINISHED_STOPPED"),
        Need("vllm.v1.request:_FINISHED_REASON_MAP"),
    ),
    "streaming": (
        Need(
            f"{_OUTPUTS}:RequestState._new_completion_output",
            ("token_ids", "finish_reason", "stop_reason"),
        ),
    ),
    "fields": (
        Need(f"{_OPENAI}.chat_completion.protocol:ChatCompletionRequest.to_sampling_params"),
        Need(f"{_OPENAI}.completion.protocol:CompletionRequest.to_sampling_params"),
    ),
    "tokens": (
        Need(f"{_RENDERER}._tokenize_prompt", ("prompt", "params")),
        Need(f"{_RENDERER}._build_tokens_prompt", ("token_ids", "prompt")),
        Need(f"{_RENDERER}._wants_offsets", ("prompt", "params")),
        Need(f"{_RENDERER}.get_tokenizer"),
    ),
    "prompts": (
        Need(f"{_RENDERER}.render_chat_async", ("conversations", "chat_params", "tok_params", "prompt_extras")),
        Need(f"{_RENDERER}.render_cmpl_async", ("prompts", "tok_params", "prompt_extras")),
    ),
    "detokenizer": (
        Need("vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.__init__", ("tokenizer", "request")),
        Need("vllm.v1.engine:EngineCoreRequest", ("prompt_token_ids",)),
        Need("tokenizers.decoders:DecodeStream"),
    ),
    "left_answers": (
        Need(f"{_OUTPUTS}:OutputProcessor.add_request", ("request",)),
        Need("vllm.v1.engine.detokenizer:IncrementalDetokenizer.num_output_tokens"),
    ),
    "answer_replay": (
        Need(f"{_CLIENT}:AsyncLLM.add_request"),
        Need(f"{_OUTPUTS}:OutputProcessor.add_request", ("request", "prompt")),
        Need(f"{_OUTPUTS}:OutputProcessor.process_outputs", ("engine_core_outputs",)),
        Need(f"{_OUTPUTS}:RequestOutputCollector.get_nowait"),
        Need(f"{_OUTPUTS}:RequestState.__init__", ("stream_interval", "queue")),
        Need("vllm.v1.engine:EngineCoreOutput", ("request_id", "new_token_ids", "finish_reason", "stop_reason")),
        Need("vllm.v1.engine:EngineCoreOutput", ("new_logprobs",)),
        Need("vllm.v1.outputs:LogprobsLists", ("logprob_token_ids", "logprobs", "sampled_token_ranks")),
        Need("vllm.v1.engine:EngineCoreRequest", ("prompt_token_ids", "prompt_embeds", "sampling_params")),
        Need("vllm.v1.engine:FinishReason.STOP"),
        Need("vllm.utils:random_uuid"),
        Need("vllm.utils:uuid.uuid4"),
    ),
    "restored_outputs": (
        Need("vllm.v1.request:Request.from_engine_core_request", ("request", "block_hasher")),
        Need("vllm.v1.request:Request.append_output_token_ids", ("token_ids",)),
        Need("vllm.v1.worker.gpu_input_batch:CachedRequestState", ("sampling_params", "output_token_ids")),
        Need("vllm.v1.worker.gpu_input_batch:CachedRequestState.__post_init__"),
        Need("vllm.v1.structured_output:StructuredOutputManager._create_grammar", ("request",)),
        Need("vllm.v1.structured_output.backend_types:StructuredOutputGrammar.accept_tokens", ("request_id", "tokens")),
    ),
    "message_start": (
        Need(
            f"{_MESSAGES}.chat_completion_stream_generator",
            ("request", "result_generator"),
            instead=Need(f"{_MESSAGES}.chat_completion_stream_generator_raw", ("request", "result_generator")),
        ),
        Need(f"{_ANTHROPIC}:_build_anthropic_usage", ("usage",)),
    ),
    "keys": (
        Need("vllm.renderers.online_renderer:OnlineRenderer.render_chat", ("request", "skip_mm_cache")),
        Need("vllm.renderers.online_renderer:OnlineRenderer.render_completion", ("request", "skip_mm_cache")),
        Need(f"{_OPENAI}.chat_completion.protocol:ChatCompletionRequest", ("messages", "cache_salt")),
        Need(f"{_OPENAI}.completion.protocol:CompletionRequest", ("prompt", "cache_salt")),
    ),
    "routes": (
        Need("vllm.v1.engine.core:EngineCore"),
        Need("vllm.v1.engine.core_client:AsyncMPClient._call_utility_async", ("method", "engine")),
    ),
}
"""Needs of each feature that hooks into vLLM; a need with alternatives is checked by the feature."""


@cache
def unmet(feature: str) -> str:
    """What a feature lacks in this vLLM, as a message; "" where nothing."""
    missing = [lack for need in NEEDS.get(feature, ()) if (lack := need.missing())]
    return f"vLLM {engine_version()} has no {', '.join(missing)}" if missing else ""


def parameters(target: object) -> frozenset[str]:
    """Parameter names of a callable, or field names of a struct or model; empty for anything else."""
    fields = getattr(target, "__struct_fields__", None) or getattr(target, "model_fields", None)
    if fields:
        return frozenset(fields)
    try:
        return frozenset(inspect.signature(target).parameters)  # type: ignore[arg-type] # what is not callable raises
    except (TypeError, ValueError):
        return frozenset()


def engine_version() -> str:
    """Version of the vLLM in this process; "" where there is none."""
    try:
        return str(import_module("vllm").__version__)
    except (ImportError, AttributeError):
        return ""


def other_frontend(environment: Mapping[str, str]) -> str:
    """Why the API server of an engine with this environment has nothing of the plugin; "" where it may have.

    vLLM's own reading of the variable, from 0.33 on: a number.
    """
    value = environment.get(RUST_FRONTEND, "").strip()
    return "" if value in {"", "0"} else NO_PYTHON


def untested(version: str) -> str:
    """A note where a version is outside the tested range; "" where it is inside."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found and OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        return ""
    tested = " to ".join(f"{major}.{minor}" for major, minor in (OLDEST, NEWEST))
    return f"untested version {version or 'unknown'}, tested are {tested}"
