"""What vLLM's KV-cache events say, and their two encodings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tests.fakes.chain import Link, external_hash

MEDIUM: Final = "GPU"
GROUP: Final = 0
SPEC_KIND: Final = "full_attention"


@dataclass(frozen=True, slots=True)
class Stored:
    links: tuple[Link, ...]
    block_size: int
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    link: Link


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A copy in the host's memory, as OffloadingConnector announces it without `self_describing_kv_events`."""

    link: Link


@dataclass(frozen=True, slots=True)
class Cleared:
    pass


Event = Stored | Removed | Offloaded | Cleared


@dataclass(frozen=True, slots=True)
class Encoding:
    """``as_map``: maps since 0.26, arrays before. ``as_int``: 64-bit hashes by default, else 32 bytes."""

    as_map: bool = True
    as_int: bool = True

    def batch(self, timestamp: float, events: Sequence[Event], rank: int = 0) -> bytes:
        return _encoder.encode([timestamp, [self._event(event) for event in events], rank])

    def _event(self, event: Event) -> Any:
        fields = self._fields(event)
        if self.as_map:
            kept = {name: value for name, value in fields.items() if value is not None or name in _ALWAYS}
            return {"type": _NAMES[type(event)], **kept}
        values = list(fields.values())
        while values and values[-1] is None and len(values) > _REQUIRED[type(event)]:
            values.pop()
        return [_NAMES[type(event)], *values]

    def _fields(self, event: Event) -> dict[str, Any]:
        match event:
            case Stored():
                return self._stored(event)
            case Removed(link):
                return {"block_hashes": [self._hash(link)], "medium": MEDIUM, "group_idx": GROUP}
            case Offloaded(link):
                return self._placeholder(link)
            case Cleared():
                return {}

    def _stored(self, event: Stored) -> dict[str, Any]:
        parent = event.links[0].parent
        fields: dict[str, Any] = {
            "block_hashes": [self._hash(link) for link in event.links],
            "parent_block_hash": None if parent is None else self._hash(parent),
            "token_ids": [token for link in event.links for token in link.tokens],
            "block_size": event.block_size,
            "lora_id": None,
            "medium": MEDIUM,
            "lora_name": None,
            "extra_keys": [link.extra_keys for link in event.links],
            "group_idx": GROUP,
            "kv_cache_spec_kind": SPEC_KIND,
        }
        if self.as_map:
            fields["session_id"] = event.session_id
            fields["lookahead_token_ids"] = [link.ahead for link in event.links] if event.links[0].ahead else None
        return fields

    def _placeholder(self, link: Link) -> dict[str, Any]:
        none: dict[str, Any] = {"parent_block_hash": None, "token_ids": [], "block_size": 0, "lora_id": None}
        more = {"medium": "CPU", "lora_name": None, "extra_keys": None, "group_idx": GROUP}
        return {"block_hashes": [self._hash(link)], **none, **more}

    def _hash(self, link: Link) -> int | bytes:
        return external_hash(link.digest, as_int=self.as_int)


_encoder = msgspec.msgpack.Encoder()
_NAMES: Final = {Stored: "BlockStored", Offloaded: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}
_REQUIRED: Final = {Stored: 7, Offloaded: 7, Removed: 2, Cleared: 0}
_ALWAYS: Final = frozenset({"parent_block_hash", "lora_id", "lora_name"})
