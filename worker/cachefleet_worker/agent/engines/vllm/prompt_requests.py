"""Requests that run a prompt for its cache, and count its tokens: pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec

from cachefleet_core.warmth import Prefix

_MESSAGES: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_TOKENIZED: Final = ("model", "prompt", "messages")
Json = Mapping[str, object]


def warm_request(model: str, prefix: Prefix, *, again: bool = True) -> tuple[str, dict[str, object]]:
    """Path and body of the request that caches a prefix. ValueError where it has neither messages nor ids.

    ``again``: blocks that are cached already are announced once more.
    """
    body: dict[str, object] = {
        "model": prefix.lora or model,
        "max_tokens": 1,
        "temperature": 0,
        "stream": False,
        # The gate must not refuse what is not cached yet.
        "vllm_xargs": {"kv_cache_report_mode": "full" if again else "incremental", "cache_hit_threshold": 0},
    }
    if prefix.salt:
        body["cache_salt"] = prefix.salt
    if prefix.ids:
        if len(prefix.ids) % 4:
            raise ValueError("ids: not a multiple of 4 bytes")
        ids = list(struct.unpack(f"<{len(prefix.ids) // 4}I", prefix.ids))
        return "/v1/completions", body | {"prompt": ids, "logprobs": 0}
    if not prefix.messages:
        raise ValueError("neither messages nor ids")
    try:
        messages = _MESSAGES.decode(prefix.messages)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError("messages: not a JSON array of objects") from error
    return "/v1/chat/completions", body | {"messages": messages, "logprobs": True}


def tokenize_request(model: str, prefix: Prefix) -> Json:
    """Body of the request that counts a prefix's tokens. ValueError as of ``warm_request``."""
    _, body = warm_request(model, prefix)
    return {name: body[name] for name in _TOKENIZED if name in body}
