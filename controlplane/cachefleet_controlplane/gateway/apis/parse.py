"""Parses a client's body to a RequestInfo, and makes the body that a worker is sent instead.

A body is parsed once, one level deep: every value the client sent stays the bytes it was. Removed is what only the
control plane may set (tenancy, transfers between workers, ranks); added are the tenant's salt and, where an API has
them, requests for usage and token ids, which are taken out of the reply again. Clients' names of media (``uuid``) are
made private to a tenant: the engine keys a medium's blocks by its name, so no tenant's name may be another's.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import cachefleet_native
import msgspec
from msgspec import Raw
from msgspec.structs import replace

from cachefleet_controlplane.gateway.apis.audio_form import read_form
from cachefleet_controlplane.gateway.apis.output_schemas import check_output_schemas
from cachefleet_controlplane.gateway.apis.request_info import (
    POOLED,
    SPEECH,
    TOKENIZING,
    Bypass,
    Endpoint,
    RequestInfo,
)
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.json_members import (
    READ_ERRORS,
    Fields,
    encode,
    first_of,
    is_list,
    is_null,
    parse_fields,
)

_NESTED: Final = ("content", "output")
"""Members of a message or a part that may be a list of parts."""
_MAX_DEPTH: Final = 4

_items = msgspec.json.Decoder(list[Raw])
_members = msgspec.json.Decoder(Fields)
_text = msgspec.json.Decoder(str)

_BYPASSED: Final = {
    **dict.fromkeys(POOLED, Bypass.POOLING),
    **dict.fromkeys(TOKENIZING, Bypass.TOKENIZE),
    **dict.fromkeys(SPEECH, Bypass.SPEECH),
    Endpoint.EMBEDDINGS: Bypass.EMBEDDINGS,
    Endpoint.COUNT_TOKENS: Bypass.COUNT_TOKENS,
}
_SALTLESS: Final = frozenset({Endpoint.COUNT_TOKENS, *TOKENIZING, *SPEECH})
"""Nothing is computed, so nothing is cached; or the engine takes no salt."""
_REFERENCE: Final = b"$ref"
_GATED: Final = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
_SCORED: Final = ("query", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2")
_MEDIA_IN: Final = ("messages", "input", *_SCORED)


def parse(body: bytes, endpoint: Endpoint, *, trusted: bool = False) -> RequestInfo:
    """Return the RequestInfo of a body; ``trusted`` keeps what only a trusted tenant may say.

    ApiError 400 where it is not a JSON object, its model is not text, or it asks for what no worker is asked.
    """
    try:
        ask, (first, media, rest) = cachefleet_native.understand(body, endpoint, trusted)
    except cachefleet_native.AskError as error:
        raise _refusal(body, endpoint, *error.args) from error
    if ask.mentions(_REFERENCE):
        check_output_schemas(ask.fields, endpoint)
    return RequestInfo(endpoint, ask, *first, Bypass.MEDIA if media else _BYPASSED.get(endpoint), *rest)


def parse_form(body: bytes, endpoint: Endpoint, *, content_type: bytes, trusted: bool = False) -> RequestInfo:
    """Return the RequestInfo of a form. ApiError 400 where it is broken, or a field is not as ``parse`` has it."""
    form = read_form(body, content_type)
    return replace(parse(encode(form.fields()), endpoint, trusted=trusted), form=form)


def understand(fields: Fields, endpoint: Endpoint, *, trusted: bool = False) -> RequestInfo:
    """As ``parse``, of a body that is split into its members."""
    return parse(encode(fields), endpoint, trusted=trusted)


def upstream_body(info: RequestInfo, *, model: str, salt: str, gated: bool = False) -> tuple[bytes, int]:
    """Return a worker's body and its number of members; ``model`` is the engine's name for it, ``salt`` may be "".

    ``gated``: workers apply a hit threshold; a chat or completion without one of its own is sent 0.
    """
    gates = gated and info.threshold is None and info.endpoint in _GATED
    body, members = _with_own_names(info, salt).upstream(
        info.endpoint,
        model=model if info.model else "",
        salt=salt,
        threshold=gates,
        ids=info.ids_wanted,
        usage=info.stream and not info.usage_asked,
    )
    return (body, members) if info.form is None else (info.form.with_fields(body), members)


def _with_own_names(info: RequestInfo, salt: str) -> cachefleet_native.Ask:
    """The members with the tenant's own names of media, where clients name any and the tenant has a salt."""
    if not salt or info.endpoint in _SALTLESS or not info.ask.may_name_media:
        return info.ask
    named = {name: with_own_names(info.fields[name], salt=salt) for name in _MEDIA_IN if name in info.fields}
    return cachefleet_native.Ask(info.fields | named)


def _refusal(body: bytes, endpoint: Endpoint, message: str | None, param: str | None) -> ApiError:
    """The ApiError 400 for a body that native code refuses; of one that is no JSON a decoder says what is wrong."""
    fields = parse_fields(body)
    check_output_schemas(fields, endpoint)
    return ApiError(400, message or "The body is not valid JSON, or a name in it is no text.", param=param)


def given_ids(info: RequestInfo) -> Raw | None:
    """Return a completion's first prompt where it is a list (of ids, if it is valid) and not truncated, else None."""
    prompt = info.ask.member("prompt") if info.endpoint is Endpoint.COMPLETIONS else None
    if prompt is None or info.ask.gives("truncate_prompt_tokens"):
        return None
    first = first_of(prompt)
    if first is None:
        first = prompt
    return first if is_list(first) else None


def first_prompt(info: RequestInfo) -> Fields:
    """Return the fields with the first prompt alone where there are several: the one that is routed by."""
    prompt = info.ask.member("prompt") if info.endpoint is Endpoint.COMPLETIONS else None
    first = None if prompt is None else first_of(prompt)
    return info.fields if first is None else info.fields | {"prompt": first}


_NAME: Final = "uuid"
_NAME_HINT, _ESCAPED = b"uuid", b"\\u00"
"""Without one of these no member has that name, not even escaped."""


def with_own_names(messages: Raw, *, salt: str) -> Raw:
    """Return messages, input items or what is scored with names of media hashed under ``salt``; what cannot be read
    stays.
    """
    text = bytes(messages)
    if _NAME_HINT not in text and _ESCAPED not in text:
        return messages
    return (_list if is_list(messages) else _item)(messages, salt.encode(), _MAX_DEPTH)


def _list(raw: Raw, salt: bytes, depth: int) -> Raw:
    try:
        items = _items.decode(raw)
    except READ_ERRORS:
        return raw
    own = [_item(item, salt, depth) for item in items]
    return Raw(encode(own)) if any(new is not old for new, old in zip(own, items, strict=True)) else raw


def _item(raw: Raw, salt: bytes, depth: int) -> Raw:
    try:
        fields = _members.decode(raw)
    except READ_ERRORS:
        return raw
    changes = _changes(fields, salt, depth)
    return Raw(encode(fields | changes)) if changes else raw


def _changes(fields: Fields, salt: bytes, depth: int) -> Fields:
    changes = {} if is_null(fields, _NAME) else {_NAME: _own(fields[_NAME], salt)}
    for name in _NESTED if depth else ():
        inner = fields.get(name)
        if inner is not None and is_list(inner) and (own := _list(inner, salt, depth - 1)) is not inner:
            changes[name] = own
    return changes


def _own(raw: Raw, salt: bytes) -> Raw:
    try:
        name = _text.decode(raw).encode()
    except READ_ERRORS:
        name = bytes(raw)  # not text: the engine will refuse it, or convert it
    return Raw(encode(hmac.new(salt, b"media\0" + name, hashlib.sha256).hexdigest()))
