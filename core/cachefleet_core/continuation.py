"""Schemas of an agent's ``POST /v1/continue`` and ``/v1/handles``: a handle to ids the engine has seen, ids to append.

The field names of ``prompt_cache_ref`` and ``append_token_ids`` are fixed; unknown fields are refused. docs/continue.md
describes the protocol. A refusal does not fail the conversation: the caller sends all ids instead.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final, Protocol, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

CONTINUE_PATH: Final = "/v1/continue"
HANDLES_PATH: Final = "/v1/handles"
HANDLE_PREFIX: Final = "vllm_prefix_"
CONVERSATION_HEADER: Final = "x-cachefleet-conversation"
"""Of a request: keep it, under these Fingerprints, as JSON. Of its answer: what was kept, a KeptPrefix, as JSON."""
REF_MEMBER: Final = "prompt_cache_ref"
APPEND_MEMBER: Final = "append_token_ids"
RETURN_MEMBER: Final = "return_prompt_cache_ref"
KEPT_MEMBERS: Final = ("tools", "instructions", "system")
"""Members that a worker keeps besides a conversation's items; a body with a reference has none of them."""
MAX_TTL_SECONDS: Final = 2_592_000

TokenId = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
Text = Annotated[str, Meta(max_length=1024)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Salt = Annotated[str, Meta(min_length=1, max_length=1024)]
Hash = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Handle = Annotated[str, Meta(pattern=f"^{HANDLE_PREFIX}[0-9a-z_]{{1,200}}$")]
Tokens = Annotated[int, Meta(ge=1, le=16_777_216)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class RefusalCode(StrEnum):
    """Why a prefix is not continued; each is a 409, after which the caller sends all ids."""

    HANDLE_UNKNOWN = "handle_unknown"
    STALE_EPOCH = "stale_epoch"
    """Minted in another run of this engine, by another engine, or before its cache was cleared."""
    HANDLE_EXPIRED = "handle_expired"
    HANDLE_CORRUPT = "handle_corrupt"
    HANDLE_NOT_KEPT = "handle_not_kept"
    """Only at minting: there is no room for it, or handles are switched off."""
    MODEL_MISMATCH = "model_mismatch"
    TOKENIZER_MISMATCH = "tokenizer_mismatch"
    RENDERER_MISMATCH = "renderer_mismatch"
    RENDERER_VERSION_MISMATCH = "renderer_version_mismatch"
    TEMPLATE_MISMATCH = "template_mismatch"
    INSTRUCTIONS_MISMATCH = "instructions_mismatch"
    TOOLS_MISMATCH = "tools_mismatch"
    SALT_MISMATCH = "salt_mismatch"
    COUNT_MISMATCH = "count_mismatch"
    PREFIX_HASH_MISMATCH = "prefix_hash_mismatch"
    BOUNDARY_NOT_PROVEN = "boundary_not_proven"
    NO_MARGINAL_SUFFIX = "no_marginal_suffix"
    APPEND_MALFORMED = "append_malformed"
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"  # noqa: S105 (a word, no secret)


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


class ExtraArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Allowed ``extra_args`` of the engine: those of the worker plugin, and vLLM's own for reports of its KV cache."""

    cache_hit_threshold: Annotated[float, Meta(ge=0.0, le=1.0)] | UnsetType = UNSET
    cachefleet_resumable: Annotated[int, Meta(ge=0, le=1)] | UnsetType = UNSET
    kv_cache_report_mode: Annotated[str, Meta(pattern="^full$")] | UnsetType = UNSET


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The engine's sampling parameters, under its names; those left out have the engine's defaults."""

    n: Annotated[int, Meta(ge=1, le=1)] | UnsetType = UNSET
    max_tokens: Tokens | UnsetType = UNSET
    min_tokens: Annotated[int, Meta(ge=0, le=16_777_216)] | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | UnsetType = UNSET
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | UnsetType = UNSET
    top_k: Annotated[int, Meta(ge=-1, le=0x7FFF_FFFF)] | UnsetType = UNSET
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | UnsetType = UNSET
    presence_penalty: Penalty | UnsetType = UNSET
    frequency_penalty: Penalty | UnsetType = UNSET
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | UnsetType = UNSET
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | UnsetType = UNSET
    stop: Annotated[list[Annotated[str, Meta(min_length=1, max_length=1024)]], Meta(max_length=64)] | UnsetType = UNSET
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | UnsetType = UNSET
    include_stop_str_in_output: bool | UnsetType = UNSET
    ignore_eos: bool | UnsetType = UNSET
    logprobs: Annotated[int, Meta(ge=0, le=1000)] | UnsetType = UNSET
    skip_special_tokens: bool | UnsetType = UNSET
    spaces_between_special_tokens: bool | UnsetType = UNSET
    extra_args: ExtraArguments | UnsetType = UNSET


class StreamOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The engine's stream options."""

    include_usage: bool = True
    continuous_usage_stats: bool = False


class ContinueRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Continue a prefix with ``append_token_ids``, and answer."""

    prompt_cache_ref: PromptCacheRef
    append_token_ids: Raw
    """[int]; decoded by ``appended``, because its errors have codes of their own."""
    sampling_params: Sampling = Sampling()
    stream: bool = False
    stream_options: StreamOptions | None = None
    output_mode: Annotated[str, Meta(pattern="^(tokens|text)$")] = "tokens"
    cache_salt: Salt | None = None
    request_id: Name | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0


class HandleRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a handle: to ids, or to the first ids of another handle."""

    fingerprints: Fingerprints
    prompt_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    handle: Handle | None = None
    prefix_token_count: Tokens | None = None
    """Number of leading ids of ``handle``; all of them where left out."""
    prefix_hash: Hash | None = None
    """Hash of the ids meant; checked where given."""
    ends_at_boundary: bool = False
    """Whether the caller has proven that the prefix ends where a message does."""
    ttl_seconds: Annotated[float, Meta(gt=0.0, le=float(MAX_TTL_SECONDS))] = 3600.0
    cache_salt: Salt | None = None


class PromptCache(Struct, frozen=True, kw_only=True):
    """A new handle as it is answered: what a ``prompt_cache_ref`` to it must contain."""

    handle: str
    prefix_hash: str
    prefix_token_count: int
    ends_at_boundary: bool
    expires_in_seconds: float


class RequestError(ValueError):
    """An invalid request body; the message names the field and what is allowed there, never its value."""


class Digest(Protocol):
    """A running SHA-256."""

    def hexdigest(self) -> str: ...


Request = TypeVar("Request")
_appended = msgspec.json.Decoder(list[TokenId])


def read_request(body: bytes, kind: type[Request]) -> Request:
    """Decode a request of type ``kind``. RequestError where the body is invalid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(_placed(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError("body: must be a JSON object") from None


def appended(request: ContinueRequest) -> list[int]:
    """The ids to append. RequestError where ``append_token_ids`` is invalid."""
    try:
        return _appended.decode(request.append_token_ids)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError("append_token_ids: must be an array of integers from 0 to 4294967295") from None


def ids_array(ids: Iterable[int]) -> array[int]:
    """Token ids as an array of four bytes each."""
    return array("I", ids)


def packed(ids: array[int]) -> memoryview:
    """Token ids as little-endian u32."""
    if sys.byteorder == "big":
        ids = ids[:]
        ids.byteswap()
    return memoryview(ids).cast("B")


def prefix_hash(ids: Iterable[int]) -> str:
    """Name of a prefix: SHA-256 of its ids, each as four bytes, little-endian."""
    return hash_name(hashlib.sha256(packed(ids if isinstance(ids, array) else ids_array(ids))))


def hash_name(digest: Digest) -> str:
    """The same as ``prefix_hash``, from a SHA-256 of packed ids."""
    return f"sha256:{digest.hexdigest()}"


def _placed(message: str) -> str:
    """The decoder's message with the field's path in front: ``sampling_params.top_p: Expected `float` <= 1.0``."""
    text, _, place = message.rpartition(" - at `$")
    if not text:
        return f"body: {message}"
    return f"{place.rstrip('`').lstrip('.') or 'body'}: {text}"
