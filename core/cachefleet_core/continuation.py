"""What a worker keeps of a conversation, and how a request continues it; docs/worker.md describes the protocol.

The fields of ``prompt_cache_ref`` are fixed; unknown ones are refused. A refusal does not fail the conversation: the
caller sends the whole body instead.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

HANDLE_PREFIX: Final = "vllm_prefix_"
CONVERSATION_HEADER: Final = "x-cachefleet-conversation"
"""Of a request: keep it, under these Fingerprints, as JSON. Of its answer: what was kept, a KeptPrefix, as JSON."""
REF_MEMBER: Final = "prompt_cache_ref"
APPEND_MEMBER: Final = "append_token_ids"
RETURN_MEMBER: Final = "return_prompt_cache_ref"
KEEP_MEMBER: Final = "cachefleet_keep"
"""In a request's ``vllm_xargs``: for how many seconds its blocks are to be kept, one of KEEP_SECONDS."""
KEEP_SECONDS: Final = (300, 3600, 86_400)
KEPT_MEMBERS: Final = ("tools", "instructions", "system")
"""Members that a worker keeps besides a conversation's items; a body with a reference has none of them."""

TokenId = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Text = Annotated[str, Meta(max_length=1024)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Hash = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Handle = Annotated[str, Meta(pattern=f"^{HANDLE_PREFIX}[0-9a-z_]{{1,200}}$")]
Tokens = Annotated[int, Meta(ge=1, le=16_777_216)]


class RefusalCode(StrEnum):
    """Why a conversation is not continued; each is a 409, after which the caller sends the whole body."""

    HANDLE_UNKNOWN = "handle_unknown"
    """Never given, of another salt, API or life of the server, too old, or dropped: not told apart."""
    MODEL_MISMATCH = "model_mismatch"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    RENDERER_MISMATCH = "renderer_mismatch"
    RENDERER_VERSION_MISMATCH = "renderer_version_mismatch"
    TEMPLATE_MISMATCH = "template_mismatch"
    INSTRUCTIONS_MISMATCH = "instructions_mismatch"
    TOOLS_MISMATCH = "tools_mismatch"
    COUNT_MISMATCH = "count_mismatch"
    PREFIX_HASH_MISMATCH = "prefix_hash_mismatch"
    APPEND_MALFORMED = "append_malformed"


class Fingerprints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Model, renderer, template, instructions and tools of a rendered prefix; all must be equal to continue it."""

    model: Name
    tokenizer_fingerprint: Text
    renderer: Text
    renderer_version: Text
    template_fingerprint: Text
    effective_instructions_hash: Text
    effective_tools_hash: Text


MISMATCHES: Final = {
    "model": RefusalCode.MODEL_MISMATCH,
    "tokenizer_fingerprint": RefusalCode.TOKENIZER_MISMATCH,
    "renderer": RefusalCode.RENDERER_MISMATCH,
    "renderer_version": RefusalCode.RENDERER_VERSION_MISMATCH,
    "template_fingerprint": RefusalCode.TEMPLATE_MISMATCH,
    "effective_instructions_hash": RefusalCode.INSTRUCTIONS_MISMATCH,
    "effective_tools_hash": RefusalCode.TOOLS_MISMATCH,
}
"""The refusal for each field of Fingerprints."""


class PromptCacheRef(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reference to a prefix: its handle, and everything that must be unchanged."""

    handle: Handle
    prefix_hash: Hash
    prefix_token_count: Tokens
    model: Name
    tokenizer_fingerprint: Text
    renderer: Text
    renderer_version: Text
    template_fingerprint: Text
    effective_instructions_hash: Text
    effective_tools_hash: Text


class KeptPrefix(Struct, frozen=True, kw_only=True):
    """What a worker keeps of a request: the handle, and its rendered prompt's hash and number of tokens."""

    handle: Handle
    prefix_hash: Hash
    prefix_token_count: Tokens

    def ref(self, fingerprints: Fingerprints) -> PromptCacheRef:
        """The reference to it."""
        return PromptCacheRef(**msgspec.structs.asdict(self), **msgspec.structs.asdict(fingerprints))


def ids_array(ids: Iterable[int]) -> array[int]:
    """Token ids as an array of four bytes each."""
    return array("I", ids)


def packed(ids: array[int]) -> memoryview:
    """Token ids as little-endian u32."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return memoryview(ids).cast("B")


def unpacked(ids: bytes) -> array[int]:
    """Return the ids that ``packed`` packed."""
    out = array("I", ids)
    if sys.byteorder == "big":
        out.byteswap()
    return out


def prefix_hash(ids: Iterable[int]) -> str:
    """Name of a prefix: SHA-256 of its ids, each as four bytes, little-endian."""
    given = ids if isinstance(ids, array) else ids_array(ids)
    return f"sha256:{hashlib.sha256(packed(given)).hexdigest()}"
