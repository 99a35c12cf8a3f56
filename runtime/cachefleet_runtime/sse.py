"""Splits a byte stream into server-sent events; its pieces may begin anywhere, also inside a character.

An event here is its raw bytes with the blank line that ends it, so events joined are the stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

DONE: Final = b"[DONE]"
_DATA: Final = b"data:"
_EVENT: Final = b"event:"
_PLAIN: Final = b"\n\n"
_CARRIAGE: Final = b"\r\n\r\n"
_PRELUDES: Final = frozenset({b"response.created", b"response.queued", b"response.in_progress", b"ping"})
_ENDS: Final = frozenset({b"message_stop", b"response.completed", b"response.incomplete", b"response.failed"})


class StreamTooLargeError(ValueError):
    """An event is longer than the limit."""


class EventSplitter:
    """Splits bytes, fed in any pieces, into whole events."""

    __slots__ = ("_limit", "_pending", "_scanned")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = bytearray()
        self._scanned = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The events that ``data`` completes. StreamTooLargeError for one that is longer than the limit."""
        if not self._pending:
            start = yield from self._split(data, 0)
            self._pending += memoryview(data)[start:]
        else:
            self._pending += data
            start = yield from self._split(self._pending, self._scanned)
            del self._pending[:start]
        # A blank line may be split: its first three bytes can be the last three seen.
        self._scanned = max(0, len(self._pending) - 3)
        self._check(len(self._pending))

    @property
    def rest(self) -> bytes:
        """The bytes after the last whole event."""
        return bytes(self._pending)

    def take_rest(self) -> bytes:
        """Remove and return the bytes after the last whole event, for another splitter."""
        rest = bytes(self._pending)
        self._pending.clear()
        self._scanned = 0
        return rest

    def _split(self, data: bytes | bytearray, scan: int) -> Generator[bytes, None, int]:
        """Give the whole events in ``data``, of which ``scan`` bytes hold no end; return where the rest begins."""
        start, plain = 0, data.find(_PLAIN, scan)
        while (end := _event_end(data, scan, plain)) > 0:
            self._check(end - start)
            yield bytes(data[start:end])
            start = scan = end
            if 0 <= plain < scan:
                plain = data.find(_PLAIN, scan)
        return start

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise StreamTooLargeError(f"an event of more than {self._limit} bytes")


def event_data(event: bytes) -> bytes:
    """The payload of an event of one ``data`` line, after its name or without one; b"" for anything else."""
    if event[:6] == _EVENT:  # a slice is quicker than startswith
        event = event[event.find(b"\n") + 1 :]
    if event[:5] != _DATA:
        return b""
    payload = event[5:].strip()
    return b"" if b"\n" in payload else payload


def event_name(event: bytes) -> bytes:
    """The name of an event whose first line is its name; b"" for any other."""
    return event[len(_EVENT) : event.find(b"\n")].strip() if event.startswith(_EVENT) else b""


def is_prelude(event: bytes) -> bool:
    """Whether an event only says that work has begun, so that a client without it has lost nothing."""
    return event_name(event) in _PRELUDES


def is_end(event: bytes) -> bool:
    """Whether an event is the last that a client waits for."""
    return event_data(event) == DONE or event_name(event) in _ENDS


def _event_end(data: bytes | bytearray, start: int, plain: int) -> int:
    """Index at which the first event ends, blank line included; 0 where none does.

    ``plain``: that of the first bare blank line, which is not looked for at each event, or it would be looked for in
    the same bytes each time.
    """
    carriage = data.find(_CARRIAGE, start, len(data) if plain < 0 else plain + 1)
    if carriage >= 0:
        return carriage + len(_CARRIAGE)
    return plain + len(_PLAIN) if plain >= 0 else 0
