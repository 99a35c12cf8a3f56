"""What is understood of a request's body, and what a worker is sent: in plain Python, to compare native code with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from cachefleet_controlplane.gateway.apis.output_schemas import check_output_schemas
from cachefleet_controlplane.gateway.apis.parse import with_own_names
from cachefleet_controlplane.gateway.apis.request_info import (
    COMPLETIONS_MAX_TOKENS,
    GENERATING,
    SPEECH,
    THRESHOLD_FIELD,
    TRANSFER_FIELD,
    Bypass,
    Endpoint,
)
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import (
    NULL,
    READ_ERRORS,
    TRUE,
    Fields,
    encode,
    first_of,
    is_list,
    is_null,
    lax_bool,
    members,
    parse_fields,
    text,
)
from cachefleet_core.continuation import APPEND_MEMBER, KEEP_MEMBER, REF_MEMBER, RETURN_MEMBER

CHAT_MAX_TOKENS: Final = 256
MAX_CHOICES: Final = 8
MAX_SEQUENCES: Final = 128
MAX_INPUTS: Final = 2048
MOST: Final = 2**63 - 1
_GATED: Final = (Endpoint.CHAT, Endpoint.COMPLETIONS)
_UNCOMPUTED: Final = {
    Endpoint.COUNT_TOKENS: Bypass.COUNT_TOKENS,
    Endpoint.TOKENIZE: Bypass.TOKENIZE,
    Endpoint.DETOKENIZE: Bypass.TOKENIZE,
}
_LISTS: Final[Mapping[Endpoint, tuple[str, ...]]] = {
    Endpoint.EMBEDDINGS: ("input",),
    Endpoint.CLASSIFY: ("input",),
    Endpoint.POOLING: ("input",),
    Endpoint.RERANK: ("documents",),
    Endpoint.SCORE: ("data_1", "data_2", "queries", "documents", "items", "text_1", "text_2"),
}
"""Members that list what a pooling model computes one by one."""
_count = msgspec.json.Decoder(Annotated[int, Meta(ge=1)])
_raws = msgspec.json.Decoder(list[Raw])
_PRIVATE_FIELDS: Final = frozenset(
    {
        "cache_salt",
        TRANSFER_FIELD,
        "ec_transfer_params",
        "mm_payload",
        "data_parallel_rank",
    }
)
_OF_COMPLETIONS: Final = frozenset({REF_MEMBER, APPEND_MEMBER, RETURN_MEMBER})
"""Only the API of token ids takes them from clients."""
_OF_TRUSTED: Final = frozenset({"priority", "request_id", "session_id"})
"""An engine orders requests, names them and finds their sessions by these: only a trusted tenant may say them."""
_PRIVATE_XARGS: Final = frozenset({TRANSFER_FIELD, "ec_transfer_params", "kv_cache_report_mode", "cache_salt"})
_PRIVATE_XARGS_PREFIX: Final = "cachefleet"


def facts(body: bytes, endpoint: Endpoint, *, trusted: bool = False) -> dict[str, Any]:
    """Return the attributes of a RequestInfo, with its members in place of ``ask``. ApiError 400."""
    given = parse_fields(body)
    private = _PRIVATE_FIELDS if trusted else _PRIVATE_FIELDS | _OF_TRUSTED
    fields = _sanitised(given, private if endpoint is Endpoint.COMPLETIONS else private | _OF_COMPLETIONS)
    check_output_schemas(fields, endpoint)
    fields = hinted(fields, endpoint)
    found = {"endpoint": endpoint, "fields": fields, "model": text(given, "model"), "size": len(given)} | {
        "form": None,
        "lint": False,
    }
    found |= _completing(fields, endpoint) if endpoint in _GATED else _plain(fields, endpoint)
    found["cache_key"] = cache_key(fields, endpoint)
    told = any(not is_null(fields, name) for name in ("prompt_logprobs", "prompt_logprob_token_ids"))
    echo = lax_bool(fields.get("echo"))
    return found | {"echo": echo, "reads_cache": not told and not echo}


def _completing(fields: Fields, endpoint: Endpoint) -> dict[str, Any]:
    chat = endpoint is Endpoint.CHAT
    media = holds_media(fields.get("messages")) if chat else not is_null(fields, "prompt_embeds")
    names = ("max_completion_tokens", "max_tokens") if chat else ("max_tokens",)
    echo, ids_asked = lax_bool(fields.get("echo")), lax_bool(fields.get("return_token_ids"))
    choices = choices_of(fields)
    return {
        "stream": lax_bool(fields.get("stream")),
        "usage_asked": _usage_asked(fields.get("stream_options")),
        "ids_asked": ids_asked,
        "ids_wanted": not echo and not ids_asked,
        "single": choices == 1 and ("prompt" not in fields or first_of(fields["prompt"]) is None),
        "max_tokens": _first_number(fields, *names) or (CHAT_MAX_TOKENS if chat else COMPLETIONS_MAX_TOKENS),
        "bypass": Bypass.MEDIA if media else None,
        "threshold": own_threshold(fields),
        "choices": choices,
        "prompts": 1 if chat else _prompts(fields, choices),
    }


def _plain(fields: Fields, endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {"stream": lax_bool(fields.get("stream")), "usage_asked": True, "ids_asked": False}
    found |= {"ids_wanted": False, "single": True, "threshold": None, "choices": 1, "prompts": 1, "bypass": None}
    if endpoint is Endpoint.RESPONSES:
        _refuse_state(fields)
        found["max_tokens"] = number(fields.get("max_output_tokens")) or CHAT_MAX_TOKENS
        return found | {"bypass": Bypass.MEDIA if holds_media(fields.get("input")) else None}
    if endpoint is Endpoint.MESSAGES:
        found["max_tokens"] = number(fields.get("max_tokens")) or CHAT_MAX_TOKENS
        return found | {"bypass": Bypass.MEDIA if holds_media(fields.get("messages")) else None}
    if endpoint in SPEECH:
        asked = lax_bool(fields.get("stream_include_usage"))
        return found | {"usage_asked": asked, "max_tokens": CHAT_MAX_TOKENS, "bypass": Bypass.SPEECH}
    found |= {"stream": False, "max_tokens": 1}
    if endpoint in _UNCOMPUTED:
        return found | {"bypass": _UNCOMPUTED[endpoint]}
    counts = [
        within_bounds(_items_of(fields.get(name)), most=MAX_INPUTS, param=name)
        for name in _LISTS[endpoint]
        if not is_null(fields, name)
    ]
    bypass = Bypass.EMBEDDINGS if endpoint is Endpoint.EMBEDDINGS else Bypass.POOLING
    return found | {"bypass": bypass, "prompts": max(counts, default=1)}


def _items_of(value: Raw | None) -> int:
    """How many a pooling model computes: objects count as texts do."""
    with suppress(*READ_ERRORS):
        items = _raws.decode(value or b"")
        if items and bytes(items[0]).startswith(b"{"):
            return len(items)
    return count_of(value)


def upstream(info: Mapping[str, Any], *, model: str, salt: str, gated: bool) -> bytes:
    """Return a worker's body."""
    fields, endpoint = dict(info["fields"]), info["endpoint"]
    if info["model"]:
        fields["model"] = Raw(encode(model))
    if endpoint is Endpoint.RESPONSES:
        fields["store"] = Raw(b"false")
        fields.pop("previous_response_id", None)
    if gated and endpoint in _GATED and info["threshold"] is None:
        fields[THRESHOLD_FIELD] = Raw(b"0")
    if salt and endpoint not in {*_UNCOMPUTED, *SPEECH}:
        fields["cache_salt"] = Raw(encode(salt))
        named = [name for name in ("messages", "input", "query", *_LISTS[Endpoint.SCORE]) if name in fields]
        fields |= {name: with_own_names(fields[name], salt=salt) for name in named}
    if info["ids_wanted"]:
        fields["return_token_ids"] = TRUE
    if info["stream"] and not info["usage_asked"] and endpoint in SPEECH:
        fields["stream_include_usage"] = Raw(b'"true"')
    elif info["stream"] and not info["usage_asked"]:
        _want_usage(fields)
    return encode(fields)


_USAGE_ONLY: Final = Raw(b'{"include_usage":true}')


def _prompts(fields: Fields, choices: int) -> int:
    lists = [name for name in ("prompt", "prompt_embeds") if not is_null(fields, name)]
    counts = [within_bounds(count_of(fields[name]), choices, param=name) for name in lists]
    return within_bounds(sum(counts) or 1, choices, param="prompt")


def _usage_asked(raw: Raw | None) -> bool:
    options = None if raw is None else members(raw)
    return options is not None and lax_bool(options.get("include_usage"))


def _want_usage(fields: Fields) -> None:
    """Ask for usage at the end of the stream; options that the engine will refuse stay unchanged."""
    if is_null(fields, "stream_options"):
        fields["stream_options"] = _USAGE_ONLY
    elif (options := members(fields["stream_options"])) is not None:
        # vLLM sends running usage only together with usage, so the client would not have got it either.
        kept = {name: raw for name, raw in options.items() if name != "continuous_usage_stats"}
        fields["stream_options"] = Raw(encode(kept | {"include_usage": TRUE}))


def _first_number(fields: Mapping[str, Raw], *names: str) -> int | None:
    return next((found for name in names if (found := number(fields.get(name)))), None)


_WHOLE: Final = "responses are not stored here. Send the whole conversation as `input`."
CONVERSATION: Final = "conversation"


def _refuse_state(fields: Fields) -> None:
    if not is_null(fields, CONVERSATION):
        raise ApiError(400, f"`{CONVERSATION}` is not supported: {_WHOLE}", param=CONVERSATION)
    if lax_bool(fields.get("background")):
        raise ApiError(400, "`background` is not supported: responses are not stored here.", param="background")


def _sanitised(fields: Fields, private: frozenset[str]) -> Fields:
    kept = {name: raw for name, raw in fields.items() if name not in private}
    if "vllm_xargs" in kept:
        kept["vllm_xargs"] = _sanitised_xargs(kept["vllm_xargs"])
    return kept


def _sanitised_xargs(raw: Raw) -> Raw:
    given = members(raw)
    if given is None:
        return raw
    kept = {k: v for k, v in given.items() if k not in _PRIVATE_XARGS and not k.startswith(_PRIVATE_XARGS_PREFIX)}
    return raw if len(kept) == len(given) else Raw(encode(kept))


_number = msgspec.json.Decoder(float)
_number_or_text = msgspec.json.Decoder(int | float | str)
MESSAGE: Final = f"Parameter `{THRESHOLD_FIELD}` must be between 0.0 and 1.0 if provided."


def own_threshold(fields: Fields) -> float | None:
    """Return the threshold in a body, else in its ``vllm_xargs``; None for neither. ApiError 400 outside 0 to 1."""
    if THRESHOLD_FIELD not in fields and "vllm_xargs" not in fields:
        return None  # as nearly all
    nested = {} if is_null(fields, "vllm_xargs") else members(fields["vllm_xargs"]) or {}
    given = [_checked(part[THRESHOLD_FIELD]) for part in (fields, nested) if not is_null(part, THRESHOLD_FIELD)]
    return given[0] if given else None


def _checked(raw: Raw) -> float:
    try:
        value = _number.decode(raw)
    except READ_ERRORS as error:
        raise _refused() from error
    if not 0.0 <= value <= 1.0:
        raise _refused()
    return value


def _refused() -> ApiError:
    return ApiError(400, MESSAGE, param=THRESHOLD_FIELD)


def choices_of(fields: Fields) -> int:
    """Return how many choices of each prompt are asked for, by ``n`` or ``best_of``. ApiError 400 over MAX_CHOICES."""
    if "n" not in fields and "best_of" not in fields:
        return 1  # as nearly all
    return max(_choices(fields, "n"), _choices(fields, "best_of"))


def _choices(fields: Fields, name: str) -> int:
    if is_null(fields, name):
        return 1
    try:
        count = float(_number_or_text.decode(fields[name]))  # takes every way of writing a number that the engine takes
    except (*READ_ERRORS, ValueError, OverflowError):
        return 1  # no number: the engine refuses it
    if not count <= MAX_CHOICES:
        raise ApiError(400, f"`{name}` must be a whole number from 1 to {MAX_CHOICES}.", param=name)
    return max(1, int(count))  # the engine refuses what is below 1


def within_bounds(prompts: int, choices: int = 1, *, most: int = MAX_SEQUENCES, param: str) -> int:
    """Return the number of prompts, which the member ``param`` lists. ApiError 400 where all of them are too many."""
    if prompts * choices <= most:
        return prompts
    each = f", and with {choices} choices of each {most // choices}" if choices > 1 else ""
    raise ApiError(400, f"`{param}` may have from 1 to {most} items{each}; it has {prompts}.", param=param)


_HINTS: Final = (b'"image', b'_image"', b'_audio"', b'_url"', b'_embeds"', b'_file"', b'"file"', b'"audio"', b'"video')
KINDS: Final = frozenset(
    {
        *("image_url", "image_embeds", "image_pil", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds", "prompt_embeds", "input_image", "input_file", "input_video"),
        *("image", "document", "file", "audio", "video", "computer_screenshot"),
    }
)
"""Types of message parts that are not text; a part without a type is known by a member of such a name."""
_BARE: Final = frozenset({"image_url", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"}) | {
    *("video_url", "video_embeds", "prompt_embeds")
}
_NESTED: Final = ("content", "output")
"""Members of a message or a part that may be a list of parts."""
_MAX_DEPTH: Final = 4

CACHE_KEY: Final = "prompt_cache_key"
RETENTION: Final = "prompt_cache_retention"
MAX_CACHE_KEY: Final = 1024
_CONTROL: Final = "cache_control"
_MARK: Final = b'"cache_control"'
_XARGS: Final = "vllm_xargs"
_RETENTIONS: Final = {"in_memory": 0, "in-memory": 0, "24h": 86_400}
_TTLS: Final = {"5m": 300, "1h": 3600}
_LEVELS: Final = 3
"""Messages, their blocks, and blocks of a tool's result: nothing below has breakpoints."""


class _Marker(Struct, frozen=True):
    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class _Part(Struct, frozen=True):
    """A message, a block of its content, or a tool."""

    cache_control: Raw = NULL
    content: Raw = NULL


_hint_parts = msgspec.json.Decoder(list[_Part])
_marker = msgspec.json.Decoder(_Marker)


def hinted(fields: Fields, endpoint: Endpoint) -> Fields:
    """The members, with how long workers are to keep the prompt where the client says so. ApiError 400."""
    if endpoint not in GENERATING:
        return fields
    seconds = _marked_seconds(fields) if endpoint is Endpoint.MESSAGES else _retention_seconds(fields)
    if not seconds:
        return fields
    given = {} if is_null(fields, _XARGS) else members(fields[_XARGS])
    if given is None:  # the engine will refuse what is no object
        return fields
    return fields | {_XARGS: Raw(encode(given | {KEEP_MEMBER: seconds}))}


def cache_key(fields: Fields, endpoint: Endpoint) -> str:
    """The key by which the client says that prompts begin alike; "" without one. ApiError 400."""
    found = text(fields, CACHE_KEY) if endpoint in GENERATING else ""
    if len(found) > MAX_CACHE_KEY:
        raise ApiError(400, f"`{CACHE_KEY}` must have at most {MAX_CACHE_KEY} characters.", param=CACHE_KEY)
    return found


def _retention_seconds(fields: Fields) -> int:
    found = text(fields, RETENTION)
    if found and found not in _RETENTIONS:
        raise ApiError(400, f"`{RETENTION}` must be one of in_memory, 24h.", param=RETENTION)
    return _RETENTIONS.get(found, 0)


def _marked_seconds(fields: Fields) -> int:
    """The longest time that any breakpoint asks for; it stands for the whole prompt."""
    found = [] if is_null(fields, _CONTROL) else [fields[_CONTROL]]
    for name in ("system", "tools", "messages"):
        found += _markers(fields.get(name, NULL))
    return max((_TTLS[_read(marker).ttl] for marker in found), default=0)


def _markers(raw: Raw, levels: int = _LEVELS) -> Iterator[Raw]:
    """The breakpoints in a list of messages, blocks or tools; what has another shape is the worker's to refuse."""
    if not levels or _MARK not in bytes(raw):
        return
    try:
        parts = _hint_parts.decode(raw)
    except READ_ERRORS:
        return
    for part in parts:
        if part.cache_control != NULL:
            yield part.cache_control
        yield from _markers(part.content, levels - 1)


def _read(marker: Raw) -> _Marker:
    try:
        return _marker.decode(marker)
    except READ_ERRORS as error:
        message = f'`{_CONTROL}` must have the type "ephemeral", and as `ttl`, if any, one of 5m, 1h.'
        raise ApiError(400, message, param=_CONTROL) from error


_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(Fields)
_parts = msgspec.json.Decoder(list[Fields])
_text = msgspec.json.Decoder(str)


def holds_media(messages: Raw | None) -> bool:
    """Whether a body's list of messages or input items has media; False for anything but a list."""
    if messages is None or not is_list(messages):
        return False
    return _in_list(messages, _MAX_DEPTH) and any(hint in bytes(messages) for hint in _HINTS)


def _in_list(raw: Raw, depth: int) -> bool:
    return depth > 0 and any(_in_part(part, depth) for part in _taken_apart(raw))


def _taken_apart(raw: Raw) -> Iterable[Fields]:
    """The items of a list that are objects."""
    try:
        return _parts.decode(raw)
    except READ_ERRORS:
        return list(_objects(raw))


def _objects(raw: Raw) -> Iterator[Fields]:
    try:
        items = _items.decode(raw)
    except READ_ERRORS:
        return
    for item in filter(is_object, items):
        with suppress(*READ_ERRORS):
            yield _members.decode(item)


def _in_part(part: Fields, depth: int) -> bool:
    kind = _kind(part.get("type"))
    if kind in KINDS or (not kind and not _BARE.isdisjoint(part)):
        return True
    return any(_in_list(part[name], depth - 1) for name in _NESTED if name in part and is_list(part[name]))


def _kind(raw: Raw | None) -> str:
    try:
        return "" if raw is None else _text.decode(raw)
    except READ_ERRORS:
        return ""


def number(raw: Raw | None) -> int | None:
    """A whole number from 1; None for anything else."""
    try:
        return None if raw is None else min(_count.decode(raw), MOST)
    except READ_ERRORS:
        return None


def is_object(raw: Raw) -> bool:
    """Whether a value is an object, judged by its first byte."""
    return bytes(memoryview(raw)[:1]) == b"{"


def count_of(raw: Raw | None) -> int:
    """The number of prompts: 1 for a value that is no list of them."""
    return len(_listed(raw)) or 1 if raw is not None else 1


_LIST_OF_PROMPTS: Final = re.compile(rb'\[\s*["\[]')


def _listed(raw: Raw) -> list[Raw]:
    if _LIST_OF_PROMPTS.match(memoryview(raw)) is None:  # a long list of ids need not be decoded
        return []
    try:
        return _raws.decode(raw)
    except READ_ERRORS:
        return []


_ORDER: Final = ("instructions", "system", "tools", "messages", "input", "prompt")
"""Members that make a prompt; those that stay the same from turn to turn come first."""
_ENDS: Final = b"]"
"""Closes a list that the next turn makes longer."""


def visible(fields: Fields) -> bytes:
    """Return what a model sees of a body, ordered so that what grows is at its end."""
    parts = [bytes(fields[name]) for name in _ORDER if name in fields and bytes(fields[name]) != b"null"]
    return b"\n".join(parts).removesuffix(_ENDS)


_CARRIED: Final = frozenset(
    {
        *("model", "stream", "stream_options", "return_token_ids", "user", "priority", "session_id", "cache_salt"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids"),
        *("bad_words", "stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens"),
        *("spaces_between_special_tokens", "vllm_xargs", "stream_interval"),
    }
)
"""Members that shape the rest of an answer as they did its beginning."""
_SPENT: Final = frozenset(
    {
        *("messages", "prompt", "chat_template", "chat_template_kwargs", "documents", "reasoning_effort"),
        *("add_generation_prompt", "add_special_tokens", "truncate_prompt_tokens", "truncation_side"),
        *("mm_processor_kwargs", "media_io_kwargs", "parallel_tool_calls", "include_reasoning"),
        *("max_tokens", "max_completion_tokens", "min_tokens", "prompt_cache_key", "prompt_cache_retention"),
    }
)
"""Members that shaped the prompt, which is known as ids now; and token limits, which are set anew."""
_PLAIN: Final = _CARRIED | _SPENT
_NEUTRAL: Final[Mapping[str, frozenset[bytes]]] = {
    "n": frozenset({b"1"}),
    "best_of": frozenset({b"1"}),
    "echo": frozenset({b"false"}),
    "use_beam_search": frozenset({b"false"}),
    "logprobs": frozenset({b"false"}),
    "top_logprobs": frozenset({b"0"}),
    "tools": frozenset({b"[]"}),
    "tool_choice": frozenset({b'"none"'}),
    "response_format": frozenset({b'{"type":"text"}', b'{"type": "text"}'}),
    "frequency_penalty": frozenset({b"0", b"0.0"}),
    "presence_penalty": frozenset({b"0", b"0.0"}),
    "length_penalty": frozenset({b"1", b"1.0"}),
    "cache_hit_threshold": frozenset({b"0", b"0.0"}),  # above 0 the caller wants to get a refusal
}
"""Members that are harmless with these values, which equal their absence."""


def is_plain(fields: Fields) -> bool:
    """Whether another worker can go on from an answer's tokens alone."""
    odd = fields.keys() - _PLAIN
    return not _running_usage(fields) and all(_harmless(name, fields[name]) for name in odd)


def _running_usage(fields: Fields) -> bool:
    """The client wants usage in each event."""
    return b"continuous_usage_stats" in bytes(fields.get("stream_options", b""))


def _harmless(name: str, raw: Raw) -> bool:
    value = bytes(raw)
    return value == b"null" or value in _NEUTRAL.get(name, ())
