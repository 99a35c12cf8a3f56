"""Reads vLLM's KV event batches, each event by itself: a malformed one does not cost its neighbours.

Known forms: events as maps tagged ``type`` (0.26 and later) or as arrays led by the tag (before); block hashes as
integers or bytes; trailing defaults left out; fields and event types of later releases ignored. A store that cannot be
read is skipped: a block not reported only misses a hit. A removal that cannot be read becomes ``Unreadable`` in its
place, because any block held before it may be gone.

The worker plugin's heartbeats are batches without events that carry a *mark* after their three fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from cachefleet_worker.agent.blocks.block_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
    Extra,
    Total,
    Unreadable,
)

_MediumInBlock = tuple[str, Annotated[int, Meta(ge=-(1 << 32), le=1 << 32)]]


class BatchError(ValueError):
    """A payload that is no event batch; the message holds none of its content."""


class EncodedStored(BlockStored, tag="BlockStored"):
    """A store as vLLM sends it: what identifies its blocks besides tokens is decoded where it is asked for."""

    extra_keys: list[list[msgspec.Raw] | None] | None = None
    """The LoRA name, the salt and the media of each block."""
    ownership: msgspec.Raw = msgspec.Raw()
    session_id: msgspec.Raw = msgspec.Raw()

    def extras(self, index: int) -> list[Extra | None]:
        """As ``BlockStored`` says."""
        if not self.extra_keys or index >= len(self.extra_keys):
            return []
        extras = [_extra(raw) for raw in self.extra_keys[index] or ()]
        return extras[1:] if self.lora_name and extras and extras[0] == self.lora_name else extras


class _RemovedMap(BlockRemoved, tag="BlockRemoved"):
    pass


class _ClearedMap(AllBlocksCleared, tag="AllBlocksCleared"):
    pass


class _StoredArray(EncodedStored, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(BlockRemoved, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(AllBlocksCleared, array_like=True, tag="AllBlocksCleared"):
    pass


class Mark(Struct, frozen=True):
    """The engine's state right after the batches before it; ``totals`` is None where it keeps none."""

    boot: Annotated[str, Meta(min_length=1, max_length=253)]
    totals: list[Total] | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The events of one engine step, in order; ``unknown`` and ``malformed`` ones were left out."""

    events: list[Event]
    unknown: int = 0
    malformed: int = 0
    mark: Mark | None = None

    @property
    def readable(self) -> bool:
        """Whether no removal or reset in it was unreadable."""
        return not any(isinstance(event, Unreadable) for event in self.events)


class _Envelope(Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    rank: msgspec.Raw = msgspec.Raw()
    mark: msgspec.Raw = msgspec.Raw()


class _MapTag(Struct):
    type: str


class _ArrayTag(Struct, array_like=True):
    type: str


_READ_ERRORS: Final = (
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
)  # invalid UTF-8 and deep nesting raise no DecodeError
_envelope: Final = msgspec.msgpack.Decoder(_Envelope)
_mark: Final = msgspec.msgpack.Decoder(Mark)
_medium: Final = msgspec.msgpack.Decoder(_MediumInBlock)
_map_event: Final = msgspec.msgpack.Decoder(EncodedStored | _RemovedMap | _ClearedMap)
_array_event: Final = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_map_tag: Final = msgspec.msgpack.Decoder(_MapTag)
_array_tag: Final = msgspec.msgpack.Decoder(_ArrayTag)
_REMOVING: Final = frozenset({"BlockRemoved", "AllBlocksCleared"})
_KNOWN: Final = _REMOVING | {"BlockStored"}


def decode_batch(payload: bytes) -> Batch:
    """The events of one message. BatchError where the payload is no batch."""
    try:
        envelope = _envelope.decode(payload)
    except _READ_ERRORS as error:
        raise BatchError(f"not an event batch ({type(error).__name__})") from error
    events: list[Event] = []
    unknown = malformed = 0
    for raw in envelope.events:
        try:
            events.append(_decode_event(raw))
        except _READ_ERRORS:
            tag = _tag_of(raw)
            if tag is not None and tag not in _KNOWN:
                unknown += 1
                continue
            malformed += 1
            if tag != "BlockStored":
                events.append(Unreadable())
    return Batch(events, unknown, malformed, _read_mark(envelope.mark))


def read_mark(payload: bytes) -> Mark | None:
    """The mark of a message; None where it has none that can be read."""
    try:
        return _read_mark(_envelope.decode(payload).mark)
    except _READ_ERRORS:
        return None


def _read_mark(raw: msgspec.Raw) -> Mark | None:
    if not memoryview(raw):
        return None
    try:
        return _mark.decode(raw)
    except _READ_ERRORS:
        return None


def _decode_event(raw: msgspec.Raw) -> Event:
    event: Event = _array_event.decode(raw) if _is_array(raw) else _map_event.decode(raw)
    return event


def _tag_of(raw: msgspec.Raw) -> str | None:
    """The event's type; None where that cannot be read either."""
    try:
        return _array_tag.decode(raw).type if _is_array(raw) else _map_tag.decode(raw).type
    except _READ_ERRORS:
        return None


def _extra(raw: msgspec.Raw) -> Extra | None:
    first = memoryview(raw)[0]
    text = 0xA0 <= first <= 0xBF or 0xD9 <= first <= 0xDB
    try:
        return msgspec.msgpack.decode(raw, type=str) if text else _medium.decode(raw)
    except _READ_ERRORS:
        return None


def _is_array(raw: msgspec.Raw) -> bool:
    first = memoryview(raw)[0]
    return 0x90 <= first <= 0x9F or first in (0xDC, 0xDD)
