"""The items of a conversation in a request's body, and keyed digests of its beginnings. Pure.

A beginning is the members that stay (tools, instructions) and the first items, byte for byte but for what shapes no
prompt (``shaping``). Equal digests prove that a worker which keeps the one has the beginning of the other;
neither text nor ids are remembered here.

Clients move cache markers of ``/v1/messages`` from turn to turn. vLLM reads no ``cache_control``, and takes a list of
one text for that text (0.28 to 0.32, vllm/entrypoints/anthropic/serving.py). Nothing below a block's own members is
looked at: a tool's input may have a member of that name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec
from msgspec import Raw

from cachefleet_controlplane.gateway.apis.request_info import Endpoint
from cachefleet_controlplane.wire.json_members import NULL, READ_ERRORS, Fields
from cachefleet_core.continuation import KEPT_MEMBERS, REF_MEMBER, PromptCacheRef

_MARKER: Final = "cache_control"
_TEXT: Final = b'"text"'
_EMPTY: Final = b'""'

_message = msgspec.json.Decoder(dict[str, Raw])
_blocks = msgspec.json.Decoder(list[dict[str, Raw]])
_encode = msgspec.json.Encoder().encode


def shaping(item: Raw) -> bytes | Raw:
    """Return a message without its blocks' markers, and one text alone as that text; any other as it is."""
    try:
        message = _message.decode(item)
        blocks = _blocks.decode(message["content"])
    except (KeyError, *READ_ERRORS):  # its content is text, or it is for vLLM to refuse
        return item
    plain = [{name: value for name, value in block.items() if name != _MARKER} for block in blocks]
    return _encode(message | {"content": _lone_text(plain) or plain})


def _lone_text(blocks: list[dict[str, Raw]]) -> Raw | None:
    """The text of a list of one block that is text and nothing else, where there is any."""
    if len(blocks) != 1 or blocks[0].keys() != {"type", "text"} or bytes(blocks[0]["type"]) != _TEXT:
        return None
    text = bytes(blocks[0]["text"])
    return Raw(text) if text.startswith(b'"') and text != _EMPTY else None


LISTS: Final[Mapping[Endpoint, str]] = {
    Endpoint.CHAT: "messages",
    Endpoint.MESSAGES: "messages",
    Endpoint.RESPONSES: "input",
}
"""The member that holds a conversation's items."""
MAX_ITEMS: Final = 4096
"""Conversations of more items are sent whole."""
_DIGEST_BYTES: Final = 16
_KEY_BYTES: Final = 64

_items = msgspec.json.Decoder(list[Raw])


@dataclass(frozen=True, slots=True)
class Items:
    """A conversation's items; ``digests[n]`` names what its first ``n`` items begin with."""

    member: str
    items: Sequence[Raw] = field(repr=False)
    digests: Sequence[bytes] = field(repr=False)

    @property
    def whole(self) -> bytes:
        """The digest of all items."""
        return self.digests[-1]

    def beginnings(self) -> Iterator[tuple[int, bytes]]:
        """Yield each beginning that has an item, as its length and digest, the longest first."""
        for count in range(len(self.items), 0, -1):
            yield count, self.digests[count]

    def after(self, count: int, ref: PromptCacheRef) -> dict[str, Raw | None]:
        """Return the changes to a body that leave out the first ``count`` items and what stays, for ``ref``."""
        kept: dict[str, Raw | None] = dict.fromkeys(KEPT_MEMBERS)
        return kept | {self.member: Raw(_encode(self.items[count:])), REF_MEMBER: Raw(_encode(ref))}


def items_of(
    endpoint: Endpoint, fields: Fields, *, key: bytes, owner: Sequence[str], seen: Fields | None = None
) -> Items | None:
    """Return the items of a worker's body; None where it has no list of them, or too many.

    Digests are keyed, and differ by ``owner``. They are of ``seen``: what of the body its renderer looks at.
    """
    member = LISTS.get(endpoint)
    if member is None:
        return None
    try:
        items = _items.decode(fields.get(member, NULL))
        looked_at = items if seen is None or seen is fields else _items.decode(seen[member])
    except READ_ERRORS:
        return None
    if not 0 < len(items) <= MAX_ITEMS:
        return None
    named = map(shaping, looked_at) if endpoint is Endpoint.MESSAGES else looked_at
    return Items(member, items, _digests(seen or fields, named, key, (endpoint, *owner)))


def _digests(fields: Fields, items: Iterable[bytes | Raw], key: bytes, owner: Sequence[str]) -> list[bytes]:
    hashed = hashlib.blake2b(key=key[:_KEY_BYTES], digest_size=_DIGEST_BYTES)
    named = chain(map(str.encode, owner), (fields.get(name, b"") for name in KEPT_MEMBERS))
    for part in named:
        _add(hashed, part)
    found = [hashed.copy().digest()]
    for item in items:
        _add(hashed, item)
        found.append(hashed.copy().digest())
    return found


def _add(hashed: hashlib.blake2b, part: bytes | Raw) -> None:
    view = memoryview(part)
    hashed.update(len(view).to_bytes(8, "little"))
    hashed.update(view)
