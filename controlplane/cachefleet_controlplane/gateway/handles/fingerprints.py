"""Fingerprints of what a prompt was rendered by and with, to compare checkpoints by (A6, A11). Pure.

Clients' text is hashed under a key: with a copy of the store alone no guess of a system prompt can be tested.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.gateway.apis.request_info import Endpoint, RequestInfo
from cachefleet_controlplane.gateway.handles.conversation_items import LISTS
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, is_null
from cachefleet_controlplane.workers.render_profiles import RenderedBy
from cachefleet_core.continuation import Fingerprints

_SHAPING: Final = (
    *("chat_template", "chat_template_kwargs", "reasoning_effort", "reasoning", "include_reasoning", "documents"),
    *("add_generation_prompt", "continue_final_message", "add_special_tokens", "mm_processor_kwargs", "thinking"),
    *("truncate_prompt_tokens", "truncation"),
)
"""Members that change how a conversation is rendered, besides its content."""
_TOOLS: Final = ("tools", "tool_choice", "functions")
_INSTRUCTING: Final = frozenset({"system", "developer"})
_MEMBERS: Final = {Endpoint.RESPONSES: "instructions", Endpoint.MESSAGES: "system"}


class _Message(Struct, frozen=True):
    role: str = ""
    content: Raw = NULL


_messages = msgspec.json.Decoder(list[_Message])
_anything = msgspec.json.Decoder()


def fingerprints(model: str, by: RenderedBy, info: RequestInfo, *, key: bytes) -> Fingerprints:
    """Return the fingerprints of a request to ``model`` ("namespace/name")."""
    template = [name.encode() for name in by.profiles]
    template += [
        part for name in _SHAPING if not is_null(info.fields, name) for part in (name.encode(), info.fields[name])
    ]
    return Fingerprints(
        model=model[:253],
        tokenizer_fingerprint=by.tokenizer,
        renderer=by.renderer,
        renderer_version=by.version,
        template_fingerprint=_digest(key, template),
        effective_instructions_hash=_digest(key, _instructions(info)),
        effective_tools_hash=_digest(key, _tools(info)),
    )


def _instructions(info: RequestInfo) -> list[bytes | Raw]:
    member, listed = _MEMBERS.get(info.endpoint, ""), LISTS.get(info.endpoint, "")
    parts: list[bytes | Raw] = [] if is_null(info.fields, member) else [info.fields[member]]
    try:
        messages = _messages.decode(info.fields.get(listed, NULL))
    except READ_ERRORS:
        return parts
    return parts + [message.content for message in messages if message.role in _INSTRUCTING]


def _tools(info: RequestInfo) -> list[bytes | Raw]:
    """In canonical JSON, whatever the order of members (C13)."""
    return [_canonical(info.fields[name]) for name in _TOOLS if not is_null(info.fields, name)]


def _canonical(raw: Raw) -> bytes | Raw:
    try:
        return msgspec.json.encode(_anything.decode(raw), order="sorted")
    except READ_ERRORS:
        return raw


def _digest(key: bytes, parts: Sequence[bytes | Raw]) -> str:
    """HMAC of several parts, each with its length; "" of none."""
    if not parts:
        return ""
    hashed = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        view = memoryview(part)
        hashed.update(len(view).to_bytes(8, "little"))
        hashed.update(view)
    return f"hmac-sha256:{hashed.hexdigest()}"
