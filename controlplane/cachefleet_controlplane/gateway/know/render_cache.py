"""Caches rendered prompts for requests that are sent again: retries, second samples, other attempts.

The key is a digest of what the model sees of a request: all members but those that only say how to sample and how to
answer. A member that is not known here counts as seen. The tenant's salt is part of it, so no tenant profits from
another's prompts. Kept are lengths and block keys, no text and no token ids.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Final

from cachefleet_controlplane.gateway.request.rendered_prompt import Keyed
from cachefleet_controlplane.wire.json_members import Fields, is_null

MAX_BYTES: Final = 64 * 1024 * 1024
_DIGEST_BYTES: Final = 16
_ENTRY_BYTES: Final = 300
_BOUNDARY_BYTES: Final = 40
_UNSEEN: Final = frozenset(
    {
        *(
            "stream",
            "stream_options",
            "stream_interval",
            "n",
            "best_of",
            "user",
            "priority",
            "session_id",
            "request_id",
        ),
        *("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "ignore_eos"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "use_beam_search", "length_penalty"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "bad_words"),
        *("stop", "stop_sequences", "stop_token_ids", "include_stop_str_in_output", "allowed_token_ids"),
        *("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "vllm_xargs", "cache_hit_threshold", "metadata"),
        *("service_tier", "store", "prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Members that shape no prompt."""
_CUTTING: Final = ("truncate_prompt_tokens", "truncation")
"""Where one of these is given, the bound on the answer's length shapes the prompt as well."""


def digest(path: str, fields: Fields, *, renderer: str) -> bytes:
    """Return the digest of what a model sees of a request to ``path``, as rendered by ``renderer``."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (path.encode(), renderer.encode()):
        hashed.update(len(part).to_bytes(4, "little") + part)
    unseen = _UNSEEN if all(is_null(fields, name) for name in _CUTTING) else frozenset()
    for name in sorted(fields.keys() - unseen):
        value = memoryview(fields[name])
        hashed.update(len(name).to_bytes(4, "little") + name.encode() + len(value).to_bytes(8, "little"))
        hashed.update(value)
    return hashed.digest()


class RenderCache:
    """Rendered prompts by digest, the least recently used dropped first, in at most ``limit`` bytes."""

    def __init__(self, limit: int = MAX_BYTES) -> None:
        self._limit = limit
        self._known: OrderedDict[bytes, Keyed] = OrderedDict()
        self.bytes = 0

    def get(self, digest: bytes) -> Keyed | None:
        """Return a prompt and mark it as used; None where it is not cached."""
        found = self._known.get(digest)
        if found is not None:
            self._known.move_to_end(digest)
        return found

    def put(self, digest: bytes, prompt: Keyed) -> None:
        """Add or replace a prompt; beyond the limit the least recently used are dropped."""
        self._drop(digest)
        self._known[digest] = prompt
        self.bytes += _size(prompt)
        while self.bytes > self._limit:
            self._drop(next(iter(self._known)))

    def _drop(self, digest: bytes) -> None:
        dropped = self._known.pop(digest, None)
        self.bytes -= 0 if dropped is None else _size(dropped)


def _size(prompt: Keyed) -> int:
    return _ENTRY_BYTES + len(prompt.keys) + _BOUNDARY_BYTES * len(prompt.boundaries)
