"""Decodes compressed bodies (RFC 9110, 8.4.1: gzip and deflate): of clients whole, of workers piece by piece."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header

CONTENT_ENCODING: Final = b"content-encoding"
PIECE_BYTES: Final = 64 * 1024
"""Most that one step of an ``Inflater`` gives, however little it was made of."""
_WINDOW_BITS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_BARE: Final = -15
"""Window bits of a deflate stream without zlib's head, as some servers send it."""
_HEAD_BYTES: Final = 2
_ACCEPTED: Final = "gzip, deflate"


def encoding_of(headers: Iterable[Header]) -> bytes:
    """The coding of a body, b"" for none; names of headers are in lower case.

    ApiError 415 for one that is not understood, or more than one.
    """
    given = [header for header in headers if header[0] == CONTENT_ENCODING]
    codings = codings_of(given) if given else []
    if not codings:
        return b""  # as nearly all
    if len(codings) > 1 or codings[0] not in _WINDOW_BITS:
        told = b", ".join(codings).decode("latin-1")[:64]
        message = f"The body's content-encoding {told!r} is not understood; send it plain, or as {_ACCEPTED}."
        raise ApiError(415, message, headers={"accept-encoding": _ACCEPTED, "connection": "close"})
    return codings[0]


def codings_of(headers: Iterable[Header]) -> list[bytes]:
    """The codings of a body in the order in which they were applied, but for ``identity``."""
    given = [value for name, value in headers if name.lower() == CONTENT_ENCODING]
    named = b",".join(given).lower()
    return [coding for part in named.split(b",") if (coding := part.strip()) not in {b"", b"identity"}]


def decoded(body: bytes, encoding: bytes, *, limit: int) -> bytes:
    """The body that was compressed. ApiError 400 where it cannot be decoded, 413 over ``limit`` bytes."""
    inflater = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        plain = inflater.decompress(body, limit + 1)
    except zlib.error as error:
        raise ApiError(400, f"The body is not valid {encoding.decode()}.") from error
    if len(plain) > limit:
        raise ApiError(413, f"The decoded body is larger than {limit} bytes.")
    if not inflater.eof or inflater.unused_data:
        raise ApiError(400, f"The body is not one whole {encoding.decode()} stream.")
    return plain


class UndecodableError(ValueError):
    """A body in a coding that is not understood, or that is not what it is said to be."""


class Inflater:
    """Decodes one body that is fed in any pieces; gives it in pieces of at most PIECE_BYTES."""

    def __init__(self, codings: Sequence[bytes]) -> None:
        """UndecodableError for codings that are not understood."""
        if len(codings) != 1 or codings[0] not in _WINDOW_BITS:
            raise UndecodableError("a content-encoding that is not understood")
        self._bits = _WINDOW_BITS[codings[0]]
        self._stream = zlib.decompressobj(self._bits)
        self._left = b""
        self._full = self._begun = False

    @property
    def whole(self) -> bool:
        """What was fed ends where a compressed stream does, or is nothing."""
        return self._stream.eof or not (self._begun or self._left)

    def feed(self, data: bytes) -> None:
        """Take the next piece of the compressed body."""
        self._left += data

    def take(self) -> bytes:
        """Return the next piece of the body; b"" where more has to be fed. UndecodableError."""
        while self._full or (self._left and self._may_begin):
            if (piece := self._step()) or not (self._left or self._full):
                return piece
        return b""

    @property
    def _may_begin(self) -> bool:
        """Whether zlib's head, by which a deflate stream is told from one without it, is here as a whole."""
        return self._begun or self._bits != _WINDOW_BITS[b"deflate"] or len(self._left) >= _HEAD_BYTES

    def _step(self) -> bytes:
        if self._stream.eof:  # gzip may have several streams, one behind the other
            self._stream = zlib.decompressobj(self._bits)
        data, self._left = self._left, b""
        piece = self._decompressed(data)
        self._begun = True
        self._full = len(piece) == PIECE_BYTES
        self._left = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
        return piece

    def _decompressed(self, data: bytes) -> bytes:
        try:
            return self._stream.decompress(data, PIECE_BYTES)
        except zlib.error as error:
            if self._begun or self._bits != _WINDOW_BITS[b"deflate"]:
                raise UndecodableError("not what its content-encoding says") from error
        self._bits = _BARE
        self._stream = zlib.decompressobj(_BARE)
        return self._decompressed(data)
