"""Which of the models that share an alias answers a request: by weights, the same for all of a conversation. Pure.

A request is of the conversation that it names (``x-cachefleet-session``, a coding agent's session header), else of its
``prompt_cache_key``, else of what its first user says, which all turns of a chat begin with. Of a changed weight only
so many conversations move as have to (weighted rendezvous hashing).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import RequestInfo
from cachefleet_controlplane.gateway.converse.sessions import session_name
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import READ_ERRORS, encode

T = TypeVar("T")

LISTS: Final = ("messages", "input")
"""Members with the messages of a conversation."""
TEXTS: Final = ("messages", "input", "prompt")
"""Members that begin a request."""
BEGINNING: Final = 1024
"""Bytes of a text that tell one conversation from another."""
_MARKERS: Final = frozenset({"cache_control", "id", "status"})
"""Members of a message that differ from turn to turn."""
_items = msgspec.json.Decoder(list[Raw])
_DIGEST: Final = 8


def chosen(shares: Sequence[tuple[T, str, int]], conversation: bytes) -> T:
    """Return one of several, each with a name and a weight over 0: of all conversations each gets its share."""
    return max(shares, key=lambda share: _score(share[1], share[2], conversation))[0]


def conversation_of(info: RequestInfo, headers: Sequence[Header], tenant: str) -> bytes:
    """Return a digest of what all requests of a conversation have in common. ApiError 400 for an unusable session."""
    named = session_name(headers) or info.cache_key.encode(errors="surrogatepass") or _beginning(info.fields)
    return hashlib.blake2b(tenant.encode() + b"\0" + named, digest_size=16).digest()


def _score(name: str, weight: int, conversation: bytes) -> float:
    digest = hashlib.blake2b(name.encode(), key=conversation, digest_size=_DIGEST).digest()
    drawn = (int.from_bytes(digest) + 1) / (2 ** (8 * _DIGEST) + 1)
    return -weight / math.log(drawn)


def _beginning(fields: Mapping[str, Raw]) -> bytes:
    """What the first user says, else the beginning of the prompt."""
    for name in LISTS:
        try:
            items = _items.decode(fields[name])
        except (KeyError, *READ_ERRORS):
            continue
        return _first_words(items)
    given = next((bytes(fields[name]) for name in TEXTS if name in fields), b"")
    return given[:BEGINNING]


def _first_words(items: Sequence[Raw]) -> bytes:
    """The first item of a user, without what differs from turn to turn; the first of all where there is none."""
    for item in items:
        said: Any = msgspec.json.decode(item)
        if isinstance(said, dict) and said.get("role") == "user":
            return encode(_unmarked(said))
    return bytes(items[0])[:BEGINNING] if items else b""


def _unmarked(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _unmarked(each) for name, each in value.items() if name not in _MARKERS}
    return [_unmarked(each) for each in value] if isinstance(value, list) else value
