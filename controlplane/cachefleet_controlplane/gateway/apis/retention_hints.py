"""What clients of OpenAI's and Anthropic's APIs say of caching: how long to keep a prompt, and which belong together.

``prompt_cache_retention`` ("24h") and ``cache_control`` (with ``ttl``) become a member that the worker plugin reads;
``prompt_cache_key`` is for routing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import GENERATING, Endpoint
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, Fields, encode, is_null, members, text
from cachefleet_core.continuation import KEEP_MEMBER

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


_parts = msgspec.json.Decoder(list[_Part])
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
        parts = _parts.decode(raw)
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
