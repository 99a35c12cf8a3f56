"""Held requests: a worker renders a request, sends its block keys, and waits for GO before it answers. Pure.

A request to generate with HOLD_HEADER is sent in two parts: its JSON body, then ``GO`` or the end of the connection.
Where the plugin's feature has the mode LATE_MEMBERS, a JSON object may follow ``GO``: members of the body that are set
when the worker is decided on, as LateMembers has them; null stands for an absent one. Both end the request.

The header, as JSON, says how long the body is, and asks for keys as the query of ``/v1/fleet/keys`` does. The answer
has status 200, type MEDIA_TYPE, and frames: a kind (one byte), a length (u32, little-endian), and so many bytes,

    K   the document of prompt_keys.py, as soon as the prompt is rendered; empty where it has no keys
    H   status and headers of the answer, as JSON: {"status": 200, "headers": [["content-type", "..."], ...]}

followed by the answer's own body. What is refused before it is rendered begins with H. A server that holds requests
no more answers 501 with the code NOT_HELD, and has read nothing of the body.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from cachefleet_core.index_contract import Lookahead
from cachefleet_core.prompt_keys import MAX_BLOCK_SIZE

HOLD_HEADER: Final = "x-cachefleet-hold"
MEDIA_TYPE: Final = "application/vnd.cachefleet.held"
GO: Final = b"go"
LATE_MEMBERS: Final = "late_members"
"""Mode of the plugin's feature that takes members of the body with ``GO``."""
KEYS: Final = b"K"
HEAD: Final = b"H"
NOT_HELD: Final = "not_held"
MAX_FRAME: Final = 256 * 1024 * 1024
_FRAME: Final = struct.Struct("<cI")


class HoldError(ValueError):
    """An invalid header or frame; the message says what is wrong."""


class Head(Struct, frozen=True):
    """Status and headers of an answer."""

    status: Annotated[int, Meta(ge=100, le=599)]
    headers: tuple[tuple[str, str], ...]


class Hold(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The parsed hold header."""

    length: Annotated[int, Meta(ge=1, le=1 << 32)]
    """Bytes of the body."""
    contract: Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
    block_size: Annotated[int, Meta(ge=1, le=MAX_BLOCK_SIZE)]
    lookahead: Lookahead = 0
    """The contract's."""
    model: Annotated[str, Meta(max_length=1024)] = ""
    """As the body names it: an adapter's blocks are its own."""
    ids: bool = False

    def header(self) -> str:
        """The header's value."""
        return msgspec.json.encode(self).decode()


class LateMembers(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Members of a chat's or completion's body that come with ``GO``; they replace those of the body."""

    cache_hit_threshold: Annotated[float, Meta(ge=0, le=1)] | UnsetType | None = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType | None = UNSET


def read_go(second_part: bytes) -> LateMembers:
    """What comes with ``GO``. HoldError names what is wrong with it."""
    if not second_part.startswith(GO):
        raise HoldError(f"the second part must begin with {GO.decode()!r}")
    try:
        return msgspec.json.decode(second_part[len(GO) :] or b"{}", type=LateMembers)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HoldError(str(error)) from None


def read_hold(value: bytes) -> Hold:
    """Parse a hold header. HoldError names what is wrong with it."""
    try:
        return msgspec.json.decode(value, type=Hold)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HoldError(str(error)) from None


def frame(kind: bytes, payload: bytes) -> bytes:
    """A frame."""
    return _FRAME.pack(kind, len(payload)) + payload


def head_frame(head: Head) -> bytes:
    """The frame of an answer's head."""
    return frame(HEAD, msgspec.json.encode(head))


def read_head(payload: bytes) -> Head:
    """The head in a frame. HoldError."""
    try:
        return msgspec.json.decode(payload, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HoldError(f"no head of an answer: {error}") from None


def split(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """The first frame's kind and payload, and what follows; None where it is not whole yet. HoldError."""
    if len(data) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack_from(data)
    if kind not in {KEYS, HEAD} or length > MAX_FRAME:
        raise HoldError("no frame of a held request")
    end = _FRAME.size + length
    return (kind, data[_FRAME.size : end], data[end:]) if len(data) >= end else None
