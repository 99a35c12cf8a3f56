"""What a completion says of token ids that a worker keeps: ``prompt_cache_ref`` and ``append_token_ids``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import READ_ERRORS, edited, encode, is_null, lax_bool
from cachefleet_core.continuation import (
    APPEND_MEMBER,
    REF_MEMBER,
    RETURN_MEMBER,
    PromptCacheRef,
    TokenId,
)

NO_SUFFIX: Final = "no_marginal_suffix"
_PROMPT: Final = "prompt"
_EXCLUDED: Final = (_PROMPT, "prompt_embeds", "echo", "suffix", "truncate_prompt_tokens")
"""Members that have no meaning beside a reference, or would change what it stands for."""

_ref = msgspec.json.Decoder(PromptCacheRef)
_ids = msgspec.json.Decoder(list[TokenId])


def about_tokens(info: RequestInfo) -> bool:
    """Whether a request continues kept token ids, or asks for a reference to its own."""
    if info.endpoint is not Endpoint.COMPLETIONS:
        return False
    named = info.ask.gives(REF_MEMBER) or info.ask.gives(APPEND_MEMBER)
    return named or lax_bool(info.ask.member(RETURN_MEMBER))


def reference(info: RequestInfo) -> PromptCacheRef | None:
    """Return the reference of a request about tokens; None where it only asks for one. ApiError 400, 409."""
    if not info.single:
        raise ApiError(400, f"`{REF_MEMBER}` and `{RETURN_MEMBER}` are for one prompt and `n` of 1.", param="n")
    if is_null(info.fields, REF_MEMBER):
        if not is_null(info.fields, APPEND_MEMBER):
            raise ApiError(400, f"`{APPEND_MEMBER}` goes with `{REF_MEMBER}`.", param=APPEND_MEMBER)
        return None
    found: PromptCacheRef = _read(_ref, info.fields, REF_MEMBER)
    present = next((name for name in _EXCLUDED if not is_null(info.fields, name)), "")
    if present:
        raise ApiError(400, f"`{present}` must be left out beside `{REF_MEMBER}`.", param=present)
    if not _read(_ids, info.fields, APPEND_MEMBER):
        message = f"`{APPEND_MEMBER}` must have at least one id: a prefix alone leaves nothing to compute."
        raise ApiError(409, message, param=APPEND_MEMBER, code=NO_SUFFIX)
    return found


def whole_body(body: bytes, ids: list[int]) -> bytes:
    """Return a body with all token ids as its prompt, for a worker that does not keep them."""
    changes: dict[str, Raw | None] = {_PROMPT: Raw(encode(ids)), REF_MEMBER: None, APPEND_MEMBER: None}
    return edited(body, changes)[0]


def plain_body(body: bytes) -> bytes:
    """Return a body that asks for no reference, for a worker that gives none."""
    return edited(body, {RETURN_MEMBER: None})[0]


def _read(decoder: msgspec.json.Decoder[Any], fields: Mapping[str, Raw], name: str) -> Any:
    try:
        return decoder.decode(fields.get(name, Raw(b"null")))
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise ApiError(400, f"`{name}{place.rstrip('`')}`: {text}.", param=name) from error
    except READ_ERRORS as error:
        raise ApiError(400, f"`{name}` cannot be read.", param=name) from error
