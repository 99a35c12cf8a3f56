"""Reads ``multipart/form-data`` (RFC 7578) as it arrives; at most a piece, a head and a delimiter are held. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

MAX_HEAD: Final = 8192
"""Bytes of the head of a part."""
MAX_BOUNDARY: Final = 70
"""Characters, as RFC 2046 has it."""
_BOUNDARY: Final = re.compile(rb'(?i)multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]+)"|([^;\s]+))')
_DISPOSITION: Final = re.compile(rb"(?i)^content-disposition:\s*form-data\b(.*)$", re.MULTILINE)
_PARAMETER: Final = re.compile(rb';\s*(name|filename)=(?:"((?:[^"\\\r\n]|\\.)*)"|([^;\s]+))', re.IGNORECASE)


class FormError(ValueError):
    """It is no form, or one that is cut off; the text says why."""


@dataclass(frozen=True, slots=True)
class PartHead:
    """A part of the form begins; ``filename`` is None where it is no file."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part that began last is over."""


FormEvent = PartHead | bytes | PartEnd
"""What is read: the head of a part, pieces of its content, its end."""


class _State(Enum):
    PREAMBLE = auto()
    """Before the first delimiter."""
    HEAD = auto()
    CONTENT = auto()
    OVER = auto()


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that a content type names. FormError where it is not that of a form."""
    found = _BOUNDARY.match(content_type)
    boundary = (found[1] or found[2]) if found else b""
    if not 0 < len(boundary) <= MAX_BOUNDARY:
        raise FormError("The body must be `multipart/form-data` with a boundary.")
    return boundary


class MultipartForm:
    """One form: ``feed`` it what arrives, and ``close`` it at the end."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # the first delimiter has no line before it
        self._state = _State.PREAMBLE

    def feed(self, data: bytes) -> Iterator[FormEvent]:
        """Iterate over what ``data`` adds; to be read to its end. FormError."""
        self._buffer += data
        while self._state is not _State.OVER:
            if self._state is _State.HEAD:
                head = self._head()
                if head is None:
                    return
                self._state = _State.CONTENT
                yield head
            inside = self._state is _State.CONTENT
            content, over = self._content()
            if inside and content:
                yield content
            if not over:
                return
            if inside:
                yield PartEnd()
            self._state = self._after_delimiter()
        self._buffer.clear()

    def close(self) -> None:
        """FormError where the form is not over."""
        if self._state is not _State.OVER:
            raise FormError("The form is cut off: its last delimiter is missing.")

    def _content(self) -> tuple[bytes, bool]:
        """Take what certainly comes before the next delimiter, and the delimiter where it is there whole."""
        at = self._buffer.find(self._delimiter)
        over = at >= 0 and len(self._buffer) >= at + len(self._delimiter) + 2
        kept = at if at >= 0 else max(0, len(self._buffer) - len(self._delimiter) + 1)
        content = bytes(self._buffer[:kept])
        del self._buffer[: kept + (len(self._delimiter) if over else 0)]
        return content, over

    def _after_delimiter(self) -> _State:
        two = bytes(self._buffer[:2])
        del self._buffer[:2]
        if two == b"--":
            return _State.OVER
        if two == b"\r\n":
            return _State.HEAD
        raise FormError("A delimiter of the form is not followed by a new line.")

    def _head(self) -> PartHead | None:
        """Take the head of a part; None where it is not there whole."""
        at = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD)
        if at < 0:
            if len(self._buffer) >= MAX_HEAD:
                raise FormError(f"The head of a part of the form is over {MAX_HEAD} bytes.")
            return None
        head = bytes(self._buffer[:at])
        del self._buffer[: at + 4]
        return _read_head(head)


def _read_head(head: bytes) -> PartHead:
    disposition = _DISPOSITION.search(head)
    given = (
        {found[1].lower(): found[2] or found[3] for found in _PARAMETER.finditer(disposition[1])} if disposition else {}
    )
    if b"name" not in given:
        raise FormError("A part of the form has no name.")
    filename = given.get(b"filename")
    return PartHead(_text(given[b"name"]), None if filename is None else _text(filename))


def _text(given: bytes | None) -> str:
    """Text as browsers and clients quote it."""
    text = (given or b"").decode(errors="replace")
    return text.replace('\\"', '"').replace("%22", '"').replace("\\\\", "\\")
