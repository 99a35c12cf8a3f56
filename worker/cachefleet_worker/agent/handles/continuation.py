"""Checks a request to continue a prefix and builds the engine's request and the next handle. Pure, beside the store."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

import msgspec

from cachefleet_core.continuation import (
    MISMATCHES,
    ContinueRequest,
    Fingerprints,
    HandleRequest,
    PromptCache,
    PromptCacheRef,
    RefusalCode,
    RequestError,
    appended,
    ids_array,
    prefix_hash,
)
from cachefleet_worker.agent.handles.prompt_handles import Entry, Handles, RefusedError

_WORDS: Final = "the prefix was made with another"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the engine; None for each that is unknown."""

    vocab_size: int | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that passed all checks."""

    request: ContinueRequest
    entry: Entry
    ids: array[int]
    """Token ids of the whole prompt."""


def plan(request: ContinueRequest, handles: Handles, limits: Limits, now: float) -> Plan:
    """Check a request. RefusedError where the prefix may not be continued, RequestError where it is too long."""
    entry = handles.get(request.prompt_cache_ref.handle, now)
    _check_reference(request.prompt_cache_ref, entry)
    _check_salt(request.cache_salt, entry)
    if not entry.ends_at_boundary:
        raise RefusedError(RefusalCode.BOUNDARY_NOT_PROVEN, "nobody has proven that the prefix ends with a message")
    suffix = _suffix(request, limits.vocab_size)
    length = len(entry.ids) + len(suffix)
    if limits.max_model_len and length >= limits.max_model_len:
        raise RequestError(
            f"append_token_ids: {length} tokens in all leave no room for an answer; the engine takes "
            f"{limits.max_model_len}"
        )
    return Plan(request, entry, entry.ids + ids_array(suffix))


def engine_body(chosen: Plan) -> bytes:
    """The JSON body for ``/inference/v1/generate``."""
    request = chosen.request
    body: dict[str, object] = {
        "model": chosen.entry.fingerprints.model,
        "token_ids": chosen.ids.tolist(),
        "sampling_params": request.sampling_params,
        "stream": request.stream,
        "output_mode": request.output_mode,
        "priority": request.priority,
    }
    optional = {
        "stream_options": request.stream_options,
        "cache_salt": request.cache_salt,
        "request_id": request.request_id,
    }
    return msgspec.json.encode(body | {name: value for name, value in optional.items() if value is not None})


def mint(request: HandleRequest, handles: Handles, limits: Limits, now: float) -> Entry:
    """Keep the prefix that a request names and return its entry. RefusedError, RequestError."""
    ids = _meant(request, handles, now)
    if request.prefix_token_count is not None and len(ids) != request.prefix_token_count:
        raise RefusedError(RefusalCode.COUNT_MISMATCH, "prefix_token_count is not the number of ids")
    if request.prefix_hash is not None and prefix_hash(ids) != request.prefix_hash:
        raise RefusedError(RefusalCode.PREFIX_HASH_MISMATCH, "prefix_hash is not that of the ids")
    _check_vocabulary(ids, limits.vocab_size, "prompt_token_ids")
    entry = handles.mint(
        ids,
        request.fingerprints,
        salt=request.cache_salt or "",
        ends_at_boundary=request.ends_at_boundary,
        expires_at=now + request.ttl_seconds,
    )
    if entry is None:
        raise RefusedError(RefusalCode.HANDLE_NOT_KEPT, "there is no room for it, or handles are switched off")
    return entry


def succeed(chosen: Plan, produced: Sequence[int], handles: Handles, now: float) -> Entry | None:
    """Keep prompt and answer as the next entry; None where it does not fit, or the first has expired or was cleared.

    The new prefix counts as not ending at a boundary: nothing proves that the answer ends a message.
    """
    entry = chosen.entry
    if now >= entry.expires_at or not handles.current(entry):
        return None
    ids = chosen.ids + ids_array(produced)
    return handles.mint(ids, entry.fingerprints, salt=entry.salt, ends_at_boundary=False, expires_at=entry.expires_at)


def told(entry: Entry, now: float) -> PromptCache:
    """An entry as the API shows it; ``expires_in_seconds`` counts from ``now``."""
    return PromptCache(
        handle=entry.handle,
        prefix_hash=entry.prefix_hash,
        prefix_token_count=len(entry.ids),
        ends_at_boundary=entry.ends_at_boundary,
        expires_in_seconds=round(entry.expires_at - now, 3),
    )


def _check_reference(reference: PromptCacheRef, entry: Entry) -> None:
    _check_fingerprints(reference, entry)
    if reference.prefix_token_count != len(entry.ids):
        raise RefusedError(RefusalCode.COUNT_MISMATCH, "prefix_token_count is not the number of tokens kept")
    if reference.prefix_hash != entry.prefix_hash:
        raise RefusedError(RefusalCode.PREFIX_HASH_MISMATCH, "prefix_hash is not that of the tokens kept")


def _check_fingerprints(given: PromptCacheRef | Fingerprints, entry: Entry) -> None:
    for field, code in MISMATCHES.items():
        if getattr(given, field) != getattr(entry.fingerprints, field):
            raise RefusedError(code, f"{_WORDS} {field}")


def _check_salt(given: str | None, entry: Entry) -> None:
    if not compare_digest((given or "").encode(), entry.salt.encode()):
        raise RefusedError(RefusalCode.SALT_MISMATCH, f"{_WORDS} cache_salt")


def _suffix(request: ContinueRequest, vocab_size: int | None) -> list[int]:
    try:
        suffix = appended(request)
    except RequestError as error:
        raise RefusedError(RefusalCode.APPEND_MALFORMED, str(error)) from None
    if not suffix:
        raise RefusedError(RefusalCode.NO_MARGINAL_SUFFIX, "append_token_ids: at least one token is needed")
    _check_vocabulary(suffix, vocab_size, "append_token_ids")
    return suffix


def _check_vocabulary(ids: Sequence[int], vocab_size: int | None, field: str) -> None:
    if vocab_size is not None and ids and max(ids) >= vocab_size:
        place = next(i for i, token in enumerate(ids) if token >= vocab_size)
        message = f"{field}: at position {place} is no token of the vocabulary; its ids are 0 to {vocab_size - 1}"
        raise RefusedError(RefusalCode.TOKEN_OUT_OF_VOCABULARY, message)


def _meant(request: HandleRequest, handles: Handles, now: float) -> array[int]:
    if (request.prompt_token_ids is None) == (request.handle is None):
        raise RequestError("prompt_token_ids: must be given, or handle, and not both")
    if request.prompt_token_ids is not None:
        return ids_array(request.prompt_token_ids)
    entry = handles.get(str(request.handle), now)
    _check_fingerprints(request.fingerprints, entry)
    _check_salt(request.cache_salt, entry)
    count = request.prefix_token_count or len(entry.ids)
    if count > len(entry.ids):
        raise RefusedError(RefusalCode.COUNT_MISMATCH, "prefix_token_count is more than the number of tokens kept")
    return entry.ids[:count]
