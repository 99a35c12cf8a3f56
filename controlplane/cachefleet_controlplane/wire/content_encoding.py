"""Decodes compressed request bodies (RFC 9110, 8.4.1: gzip and deflate) within the bound on a body."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header

_WINDOW_BITS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}
_ACCEPTED: Final = "gzip, deflate"


def encoding_of(headers: Iterable[Header]) -> bytes:
    """The coding of a body, b"" for none. ApiError 415 for one that is not understood, or more than one."""
    given = [value for name, value in headers if name == b"content-encoding"]
    if not given:
        return b""
    named = b",".join(given).lower()
    codings = [coding for part in named.split(b",") if (coding := part.strip()) not in {b"", b"identity"}]
    if not codings:
        return b""
    if len(codings) > 1 or codings[0] not in _WINDOW_BITS:
        told = named.decode("latin-1")[:64]
        message = f"The body's content-encoding {told!r} is not understood; send it plain, or as {_ACCEPTED}."
        raise ApiError(415, message, headers={"accept-encoding": _ACCEPTED, "connection": "close"})
    return codings[0]


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
