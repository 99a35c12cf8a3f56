"""What a client asks for, and what a worker is sent instead.

A body is parsed once, one level deep: every value the client sent stays the bytes it was. Taken out is what only the
control plane may say (tenancy, transfers between workers, ranks); added are the tenant's salt and the wish for usage
and token ids, which ``answer`` takes out of the reply again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw

from cachefleet_controlplane.gateway.errors import ApiError

Fields = dict[str, Raw]

CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"

COMPLETIONS_MAX_TOKENS: Final = 16
"""What vLLM gives a completion that names no bound."""
CHAT_MAX_TOKENS: Final = 256
"""What to reckon with for a chat that names no bound; decisions count no more than that anyway."""


class Endpoint(StrEnum):
    """The endpoint families that generate."""

    CHAT = CHAT_PATH
    COMPLETIONS = COMPLETIONS_PATH


_PRIVATE_FIELDS: Final = frozenset(
    {
        "cache_salt",
        "kv_transfer_params",
        "ec_transfer_params",
        "mm_payload",
        "data_parallel_rank",
    }
)
_PRIVATE_XARGS: Final = frozenset({"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "cache_salt"})
_PRIVATE_XARGS_PREFIX: Final = "cachefleet"

_THRESHOLD: Final = "cache_hit_threshold"
_TRUE: Final = Raw(b"true")
_ZERO: Final = Raw(b"0")
_NULL: Final = Raw(b"null")
_USAGE_ONLY: Final = Raw(b'{"include_usage":true}')
_LAX_TRUE: Final = re.compile(rb'true|1(\.0+)?|"(1|true|t|y|yes|on)"', re.IGNORECASE)
_LIST_OF_PROMPTS: Final = re.compile(rb'\[\s*["\[]')

READ_ERRORS: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for what it cannot read; text that is not UTF-8 is no DecodeError."""

_fields = msgspec.json.Decoder(Fields)
_raws = msgspec.json.Decoder(list[Raw])
_count = msgspec.json.Decoder(Annotated[int, Meta(ge=1)])
_text = msgspec.json.Decoder(str)
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, understood as far as routing needs it. ``fields`` are what a worker may see of it."""

    endpoint: Endpoint
    model: str
    """As the client named it; "" where it named none."""
    fields: Fields
    size: int
    """Members of the client's own body."""
    stream: bool
    usage_asked: bool
    """The client wants usage in its stream."""
    ids_asked: bool
    ids_wanted: bool
    """We want token ids: always, but for an echo, where asking for them changes the text."""
    single: bool
    """One choice of one prompt."""
    max_tokens: int


def parse(body: bytes, endpoint: Endpoint) -> Ask:
    """Understand a body. ApiError 400 where it is no JSON object or names its model otherwise than as text."""
    fields = parse_fields(body)
    return understand(fields, endpoint)


def parse_fields(body: bytes) -> Fields:
    """The members of a JSON object, each as its bytes. ApiError 400."""
    try:
        return _fields.decode(body)
    except msgspec.ValidationError as error:
        raise ApiError(400, "The body must be a JSON object.") from error
    except READ_ERRORS as error:
        raise _unreadable(error) from error


def understand(fields: Fields, endpoint: Endpoint) -> Ask:
    """See ``parse``."""
    stream = lax_bool(fields.get("stream"))
    echo = lax_bool(fields.get("echo"))
    ids_asked = lax_bool(fields.get("return_token_ids"))
    return Ask(
        endpoint=endpoint,
        model=_model(fields.get("model")),
        fields=_sanitised(fields),
        size=len(fields),
        stream=stream,
        usage_asked=_usage_asked(fields.get("stream_options")),
        ids_asked=ids_asked,
        ids_wanted=not echo and not ids_asked,
        single=_is_single(fields),
        max_tokens=_max_tokens(fields, endpoint),
    )


def upstream_body(ask: Ask, *, model: str, salt: str, gated: bool = False) -> tuple[bytes, int]:
    """What a worker is sent, and how many members it has; ``model`` is its engine's name for it, ``salt`` may be "".

    ``gated``: the pool's workers refuse what their caches hold too little of. That is for a caller who asks for it.
    """
    fields = dict(ask.fields)
    if gated and is_null(fields, _THRESHOLD) and is_null(_object(fields.get("vllm_xargs", _NULL)) or {}, _THRESHOLD):
        fields[_THRESHOLD] = _ZERO
    if ask.model != model and ask.model:
        fields["model"] = Raw(_encode(model))
    if salt:
        fields["cache_salt"] = Raw(_encode(salt))
    if ask.ids_wanted:
        fields["return_token_ids"] = _TRUE
    if ask.stream and not ask.usage_asked:
        _want_usage(fields)
    return _encode(fields), len(fields)


def given_ids(ask: Ask) -> Raw | None:
    """The first prompt, where it is a list that the engine takes as it is; one of ids, if it is sound."""
    prompt = ask.fields.get("prompt")
    if ask.endpoint is not Endpoint.COMPLETIONS or prompt is None or not is_null(ask.fields, "truncate_prompt_tokens"):
        return None
    first = _first(prompt)
    if first is None:
        first = prompt
    return first if _is_list(first) else None


def first_prompt(ask: Ask) -> Fields:
    """The fields with the first prompt alone where there are several: the one that is routed by."""
    prompt = ask.fields.get("prompt")
    first = None if prompt is None else _first(prompt)
    return ask.fields if first is None else ask.fields | {"prompt": first}


def is_null(fields: Mapping[str, Raw], name: str) -> bool:
    """Absent or null."""
    return name not in fields or bytes(fields[name]) == b"null"


def lax_bool(raw: Raw | None) -> bool:
    """Whether the engine takes a value for true; what it would refuse counts as false, the refusal is its to give."""
    if raw is None:
        return False
    value = bytes(raw)
    return value == b"true" or (value not in {b"false", b"null"} and _LAX_TRUE.fullmatch(value) is not None)


def _model(raw: Raw | None) -> str:
    if raw is None or bytes(raw) == b"null":
        return ""
    try:
        return _text.decode(raw)
    except READ_ERRORS as error:
        raise ApiError(400, "`model` must be text.", param="model") from error


def _sanitised(fields: Fields) -> Fields:
    kept = {name: raw for name, raw in fields.items() if name not in _PRIVATE_FIELDS}
    if "vllm_xargs" in kept:
        kept["vllm_xargs"] = _sanitised_xargs(kept["vllm_xargs"])
    return kept


def _sanitised_xargs(raw: Raw) -> Raw:
    given = _object(raw)
    if given is None:
        return raw
    kept = {k: v for k, v in given.items() if k not in _PRIVATE_XARGS and not k.startswith(_PRIVATE_XARGS_PREFIX)}
    return raw if len(kept) == len(given) else Raw(_encode(kept))


def _usage_asked(raw: Raw | None) -> bool:
    options = None if raw is None else _object(raw)
    return options is not None and lax_bool(options.get("include_usage"))


def _want_usage(fields: Fields) -> None:
    """Ask for usage at the end; options that the engine will refuse are left to it."""
    given = fields.get("stream_options")
    if given is None or bytes(given) == b"null":
        fields["stream_options"] = _USAGE_ONLY
    elif (options := _object(given)) is not None:
        # Running usage counts only together with usage, so the client has not got it either.
        kept = {name: raw for name, raw in options.items() if name != "continuous_usage_stats"}
        fields["stream_options"] = Raw(_encode(kept | {"include_usage": _TRUE}))


def _is_single(fields: Fields) -> bool:
    several = _number(fields.get("n")) not in {None, 1}
    prompt = fields.get("prompt")
    return not several and (prompt is None or not _is_list(prompt))


def _max_tokens(fields: Fields, endpoint: Endpoint) -> int:
    default = COMPLETIONS_MAX_TOKENS if endpoint is Endpoint.COMPLETIONS else CHAT_MAX_TOKENS
    names = ("max_completion_tokens", "max_tokens") if endpoint is Endpoint.CHAT else ("max_tokens",)
    return next((number for name in names if (number := _number(fields.get(name)))), default)


def _number(raw: Raw | None) -> int | None:
    try:
        return None if raw is None else _count.decode(raw)
    except READ_ERRORS:
        return None


def _object(raw: Raw) -> Fields | None:
    """The members of a value; None where it is no object. ApiError 400: what we cannot read we cannot sanitise."""
    try:
        return _fields.decode(raw)
    except msgspec.ValidationError:
        return None
    except READ_ERRORS as error:
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> ApiError:
    return ApiError(400, f"The body is not valid JSON: {error}")


def _is_list(raw: Raw) -> bool:
    return _opening(raw) == b"["


def _is_list_of_prompts(raw: Raw) -> bool:
    """Told by how its first item opens: a long list of ids is not to be taken apart for that."""
    return _LIST_OF_PROMPTS.match(memoryview(raw)) is not None


def _opening(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _first(raw: Raw) -> Raw | None:
    """The first of a list of prompts; None for one prompt, be it text or ids."""
    if not _is_list_of_prompts(raw):
        return None
    try:
        items = _raws.decode(raw)
    except READ_ERRORS:
        return None
    return items[0]
