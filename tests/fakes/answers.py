"""The bodies of vLLM 0.32's answers: their fields, in their order, nulls included."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tests.fakes.asks import Ask
from tests.fakes.choices import chat_logprobs, completion_logprobs, finish_reason, tool_call
from tests.fakes.options import EngineOptions
from tests.fakes.scheduler import Sequence as Generation

Json = dict[str, Any]


def named_event(chunk: Json) -> bytes:
    """An event that has its type as its name."""
    name: str = chunk["type"]
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(chunk) + b"\n\n"


def new_id() -> str:
    return uuid.uuid4().hex[:16]


def fingerprint(options: EngineOptions) -> str:
    return f"vllm-{options.version}-fa4eface"


def usage(generations: Sequence[Generation], prompt_tokens: int) -> Json:
    produced = sum(len(g.tokens) - g.prompt_tokens for g in generations)
    return {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens + produced, "completion_tokens": produced}


def full_usage(generations: Sequence[Generation], ask: Ask, *, created: bool) -> Json:
    """Of a whole answer; the cached tokens are those of the last prompt, as vLLM has it."""
    last = generations[-1]
    return usage(generations, sum(len(ids) for ids in ask.prompts)) | {
        "prompt_tokens_details": {
            "cached_tokens": last.cached_tokens,
            "created_cache_tokens": last.created_tokens if created else None,
            "multimodal_tokens": None,
        },
        "completion_tokens_details": None,
    }


def stream_usage(generations: Sequence[Generation], ask: Ask, *, created: bool) -> Json:
    """Of the last chunk of a stream; the cached tokens are those of the first prompt."""
    first = generations[0]
    details: Json = {"cached_tokens": first.cached_tokens}
    if created:
        details["created_cache_tokens"] = first.created_tokens
    return usage(generations, sum(len(ids) for ids in ask.prompts)) | {"prompt_tokens_details": details}


def chat(options: EngineOptions, identity: str, ask: Ask, done: Sequence[tuple[Generation, str]]) -> Json:
    generations = [generation for generation, _ in done]
    return {
        "id": identity,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": options.model,
        "choices": [_chat_choice(i, ask, generation, text) for i, (generation, text) in enumerate(done)],
        "service_tier": None,
        "system_fingerprint": fingerprint(options),
        "usage": full_usage(generations, ask, created=True),
        "prompt_logprobs": None,
        "prompt_token_ids": ask.prompts[0] if ask.return_token_ids else None,
        "prompt_text": ask.prompt_text if ask.body.get("return_prompt_text") else None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _chat_choice(index: int, ask: Ask, generation: Generation, text: str) -> Json:
    called = bool(ask.script and ask.script.tool)
    message = {
        "role": "assistant",
        "content": "" if called else text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        **({"tool_calls": [tool_call(ask, text)]} if called else {}),
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": chat_logprobs(ask, generation.output),
        "finish_reason": finish_reason(ask, generation, named="stop"),
        "stop_reason": generation.stop_reason,
        "token_ids": generation.output if ask.return_token_ids else None,
        "routed_experts": None,
    }


def completion(options: EngineOptions, identity: str, ask: Ask, done: Sequence[tuple[Generation, str]]) -> Json:
    generations = [generation for generation, _ in done]
    return {
        "id": identity,
        "object": "text_completion",
        "created": int(time.time()),
        "model": options.model,
        "choices": [_completion_choice(i, ask, generation, text) for i, (generation, text) in enumerate(done)],
        "service_tier": None,
        "system_fingerprint": fingerprint(options),
        "usage": full_usage(generations, ask, created=False),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _completion_choice(index: int, ask: Ask, generation: Generation, text: str) -> Json:
    return {
        "index": index,
        "text": text,
        "logprobs": completion_logprobs(ask, generation.output),
        "finish_reason": generation.finish,
        "stop_reason": generation.stop_reason,
        "token_ids": generation.output if ask.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": ask.prompts[index // ask.n] if ask.return_token_ids else None,
        "routed_experts": None,
    }


def generate(options: EngineOptions, identity: str, ask: Ask, done: Sequence[tuple[Generation, str]]) -> Json:
    mode = ask.body.get("output_mode") or "tokens"
    return {
        "request_id": identity,
        "model": options.model,
        "created": int(time.time()),
        "usage": full_usage([generation for generation, _ in done], ask, created=False),
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": ask.prompts[0] if ask.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": mode,
        "choices": [generate_choice(i, ask, g.output, text, g) for i, (g, text) in enumerate(done)],
    }


def generate_choice(index: int, ask: Ask, ids: Sequence[int], text: str, generation: Generation) -> Json:
    """A choice, or one piece of it in a stream."""
    end = len(generation.tokens) - generation.prompt_tokens
    versions = [{"version": "default", "start": 0, "end": end}] if generation.finish else None
    choice: Json = {
        "index": index,
        "finish_reason": generation.finish,
        "stop_reason": generation.stop_reason,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
    }
    if ask.body.get("output_mode") == "text":
        choice["text"] = text
    return choice | {"logprobs": None}


def rendered(
    identity: str, ask: Ask, *, index: int, default_tokens: int | None, client: Mapping[str, Any] | None = None
) -> Json:
    """A complete request for ``/inference/v1/generate``; of ``client``, a body of responses, nothing else is kept."""
    return {
        "request_id": identity,
        "token_ids": ask.prompts[index],
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling(ask, ask.max_tokens[index], default_tokens, empty_arguments=client is not None),
        "model": ask.body.get("model"),
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": ask.stream,
        "stream_options": None if client else _stream_options(ask.body),
        "cache_salt": ask.body.get("cache_salt"),
        "priority": ask.body.get("priority", 0),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }


def _sampling(ask: Ask, max_tokens: int, default_tokens: int | None, *, empty_arguments: bool) -> Json:
    """Sampling parameters in vLLM's order; it leaves out most of what is at its default."""
    body = ask.body
    out: Json = {"n": ask.n} if ask.n > 1 else {}
    for name, default in (("presence_penalty", 0.0), ("frequency_penalty", 0.0), ("repetition_penalty", 1.0)):
        out[name] = float(body.get(name, default))
    out["temperature"] = float(body.get("temperature", 1.0))
    if out["temperature"] > 0:
        out |= _nucleus(body)
    out |= {name: body[name] for name in ("seed",) if body.get(name) is not None}
    out |= {"stop": stops(body), "stop_token_ids": body.get("stop_token_ids") or []}
    out |= {name: body[name] for name in ("ignore_eos",) if body.get(name)}
    if max_tokens != default_tokens:
        out["max_tokens"] = max_tokens
    out |= {"output_kind": 1 if ask.stream else 2, "skip_clone": True}
    out |= {"extra_args": body.get("vllm_xargs") or {}} if body.get("vllm_xargs") or empty_arguments else {}
    return out | {"bad_words": [], "skip_reading_prefix_cache": False}


def _stream_options(body: Mapping[str, Any]) -> Json | None:
    asked = body.get("stream_options")
    defaults = {"include_usage": True, "continuous_usage_stats": False}
    return None if asked is None else {name: asked.get(name, value) for name, value in defaults.items()}


def _nucleus(body: Mapping[str, Any]) -> Json:
    out: Json = {"top_p": float(body.get("top_p", 1.0))}
    if body.get("top_k"):
        out["top_k"] = body["top_k"]
    return out | {"min_p": float(body.get("min_p", 0.0))}


def stops(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else list(stop)


def models(options: EngineOptions) -> Json:
    created = int(time.time())
    permission = {
        "id": f"modelperm-{new_id()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    model = {
        "id": options.model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": options.root or options.model,
        "parent": None,
        "max_model_len": options.context,
        "permission": [permission],
    }
    return {"object": "list", "data": [model]}


def event_sources(options: EngineOptions, endpoint: str, replay_endpoint: str) -> Json:
    source = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint,
        "buffer_steps": options.buffer_steps,
        "hwm": 100_000,
        "max_queue_size": 100_000,
        "topic": options.topic,
    }
    return {str(options.rank): source}
