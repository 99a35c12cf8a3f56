"""Bodies of requests with a conversation: what they ask for, what they become, and what is kept of them. Pure.

Members are moved as bytes and never read further than needed: what vLLM sees is what the client's whole body would be.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw

from cachefleet_core.continuation import (
    APPEND_MEMBER,
    CONVERSATION_HEADER,
    KEPT_MEMBERS,
    REF_MEMBER,
    RETURN_MEMBER,
    Fingerprints,
    PromptCacheRef,
    RefusalCode,
    TokenId,
    ids_array,
    prefix_hash,
)
from cachefleet_worker.plugin.asgi import HttpError
from cachefleet_worker.plugin.conversations.turn import Api, Common, Turn

LISTS: Final = {Api.CHATS: "messages", Api.RESPONSES: "input", Api.MESSAGES: "messages"}
"""The member that grows with each turn."""
_PROMPT: Final = "prompt"
_OURS: Final = (REF_MEMBER, APPEND_MEMBER, RETURN_MEMBER)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_NULL: Final = Raw(b"null")

_fields = msgspec.json.Decoder(dict[str, Raw])
_ids = msgspec.json.Decoder(list[TokenId])
_fingerprints = msgspec.json.Decoder(Fingerprints)
_salt = msgspec.json.Decoder(str)
_ref = msgspec.json.Decoder(PromptCacheRef)
_flag = msgspec.json.Decoder(bool)
_text_or_ids = msgspec.json.Decoder(str | list[int] | None)
_at_most_one = msgspec.json.Decoder(Annotated[list[Raw], Meta(max_length=1)])


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A request's body, and under which fingerprints its conversation is to be kept."""

    api: Api
    fingerprints: Fingerprints
    fields: Mapping[str, Raw] = field(repr=False)
    salt: str = field(repr=False)
    ref: PromptCacheRef | None = None
    returns_ref: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """The whole body, and what it adds to the turn that it continues."""

    body: bytes = field(repr=False)
    common: Common
    added: bytes | None = field(repr=False)
    """None where it cannot be continued, or is known when it is rendered."""
    parent: Turn | None = None
    returns_ref: bool = False


def read_header(value: bytes) -> Fingerprints:
    """The fingerprints of a request's header. HttpError 400."""
    found: Fingerprints = _read(_fingerprints, Raw(value), CONVERSATION_HEADER)
    return found


def read_body(body: bytes, fingerprints: Fingerprints, api: Api | None) -> ConversationRequest | None:
    """What a body asks for; None where it is of no API with conversations. HttpError 400.

    ``api`` is None for keys, whose bodies say by their members what they are.
    """
    fields = _read(_fields, Raw(body), "body")
    found = api or _api(fields)
    if found is None:
        return None
    salt = _optional(fields, "cache_salt", _salt) or ""
    ref = _optional(fields, REF_MEMBER, _ref)
    asked = ConversationRequest(found, fingerprints, fields, salt, ref, bool(_optional(fields, RETURN_MEMBER, _flag)))
    _check(asked)
    return asked


def has_reference(body: bytes) -> bool:
    """Whether a body refers to a turn, so that it is not whole."""
    try:
        return REF_MEMBER in _fields.decode(body)
    except _UNREADABLE:
        return False


def joined(asked: ConversationRequest, turn: Turn | None, body: bytes) -> Joined:
    """The whole body, with what ``turn`` holds. HttpError 409 where what is to be added is no list."""
    if asked.api is Api.COMPLETIONS:
        return _completion(asked, turn, body)
    return _chat(asked, turn, body)


def kept(whole: Joined, ids: array[int], name: str) -> Turn | None:
    """The turn to keep of a request that was rendered to ``ids``, whose hash is ``name``; None where there is none."""
    common, parent, added = whole.common, whole.parent, whole.added
    if common.api is Api.COMPLETIONS:
        parent, added = _continued(parent, ids)
    if added is None:
        return None
    made = Turn(common, added, name, len(ids), parent)
    same = parent is not None and not added and (parent.prefix_hash, parent.prefix_token_count) == (name, len(ids))
    return parent if same else made


def followed(prompt: Turn, answer: array[int]) -> Turn:
    """The turn of a completion's prompt and its answer together."""
    ids = prompt.ids + answer
    return Turn(prompt.common, answer.tobytes(), prefix_hash(ids), len(ids), prompt)


def _continued(parent: Turn | None, ids: array[int]) -> tuple[Turn | None, bytes]:
    """What a completion adds to its parent; no parent where it does not begin with its ids, as when truncated."""
    before = parent.whole if parent else b""
    whole = ids.tobytes()
    return (parent, whole[len(before) :]) if whole.startswith(before) else (None, whole)


def _chat(asked: ConversationRequest, turn: Turn | None, body: bytes) -> Joined:
    name = LISTS[asked.api]
    added = _items(asked.fields.get(name, _NULL))
    if turn is None:
        members = {each: bytes(asked.fields[each]) for each in KEPT_MEMBERS if each in asked.fields}
        return Joined(body, Common(asked.api, asked.fingerprints, asked.salt, members), added)
    if added is None:
        raise refused(RefusalCode.APPEND_MALFORMED, f"{name}: must be the list of what is new")
    items = b",".join(filter(None, (turn.whole, added)))
    common = {each: Raw(value) for each, value in turn.common.members.items()}
    return Joined(_encoded(asked, common | {name: Raw(b"[" + items + b"]")}), turn.common, added, turn)


def _completion(asked: ConversationRequest, turn: Turn | None, body: bytes) -> Joined:
    if turn is None:
        whole = _encoded(asked, {}) if asked.returns_ref else body
        common = Common(asked.api, asked.fingerprints, asked.salt)
        return Joined(whole, common, None, returns_ref=asked.returns_ref)
    try:
        added = ids_array(_ids.decode(asked.fields.get(APPEND_MEMBER, _NULL)))
    except _UNREADABLE:
        message = f"{APPEND_MEMBER}: must be an array of integers from 0 to 4294967295"
        raise refused(RefusalCode.APPEND_MALFORMED, message) from None
    prompt = Raw(msgspec.json.encode((turn.ids + added).tolist()))
    return Joined(_encoded(asked, {_PROMPT: prompt}), turn.common, None, turn, asked.returns_ref)


def refused(code: RefusalCode, message: str) -> HttpError:
    """A conversation that is not continued: the caller sends the whole body instead."""
    return HttpError(409, code.value, message)


def _encoded(asked: ConversationRequest, members: dict[str, Raw]) -> bytes:
    own = {name: value for name, value in asked.fields.items() if name not in _OURS}
    return msgspec.json.encode(own | members)


def _items(value: Raw) -> bytes | None:
    """What is between a list's brackets; None for anything else."""
    text = bytes(value).strip()
    return text[1:-1].strip() if text.startswith(b"[") else None


def _api(fields: Mapping[str, Raw]) -> Api | None:
    if "messages" in fields:
        return Api.CHATS
    return Api.COMPLETIONS if _PROMPT in fields or APPEND_MEMBER in fields else None


def _check(asked: ConversationRequest) -> None:
    """Refuse members that do not belong together, or would be ignored. HttpError 400."""
    fields, completion = asked.fields, asked.api is Api.COMPLETIONS
    if asked.ref is not None:
        present = next((name for name in (*KEPT_MEMBERS, _PROMPT) if name in fields), "")
        if present:
            raise _bad(present, f"must be left out beside {REF_MEMBER}")
    if APPEND_MEMBER in fields and not (completion and asked.ref is not None):
        raise _bad(APPEND_MEMBER, f"goes with {REF_MEMBER} of a completion")
    if asked.returns_ref:
        _check_single(fields, completion=completion)


def _check_single(fields: Mapping[str, Raw], *, completion: bool) -> None:
    """A reference is to one prompt and its one answer. HttpError 400."""
    if not completion:
        raise _bad(RETURN_MEMBER, "is for completions")
    if bytes(fields.get("n", _NULL)) not in {b"null", b"1"}:
        raise _bad("n", f"must be 1 beside {RETURN_MEMBER}")
    prompt = fields.get(_PROMPT, _NULL)
    if not (_is(_text_or_ids, prompt) or _is(_at_most_one, prompt)):
        raise _bad(_PROMPT, f"must be one prompt beside {RETURN_MEMBER}: text, or an array of token ids")


def _optional(fields: Mapping[str, Raw], name: str, decoder: msgspec.json.Decoder[Any]) -> Any:
    given = fields.get(name, _NULL)
    return None if bytes(given) == b"null" else _read(decoder, given, name)


def _is(decoder: msgspec.json.Decoder[Any], value: Raw) -> bool:
    try:
        decoder.decode(value)
    except _UNREADABLE:
        return False
    return True


def _read(decoder: msgspec.json.Decoder[Any], value: Raw, name: str) -> Any:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise _bad(f"{name}{place.rstrip('`')}", text) from None
    except _UNREADABLE:
        raise _bad(name, "must be a JSON object") from None


def _bad(name: str, message: str) -> HttpError:
    return HttpError(400, "bad_conversation", f"{name}: {message}")
