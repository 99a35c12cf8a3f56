"""Reads ``multipart/form-data`` (RFC 7578) as it arrives, by a library; of content nothing is held. Pure."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

MAX_HEADERS: Final = 8
"""Of one part."""
MAX_HEADER: Final = 4096
"""Bytes of one of them."""
MAX_BOUNDARY: Final = 70
"""Characters, as RFC 2046 has it."""
_FORM: Final = b"multipart/form-data"
_DISPOSITION: Final = b"content-disposition"
_SILENT: Final = logging.getLogger(f"{__name__}.library")
"""What a client sent wrong is told to it, and is nothing for a log."""
_SILENT.disabled = True


class FormError(ValueError):
    """It is no form, or one that is cut off; the text says why."""


@dataclass(frozen=True, slots=True)
class PartHead:
    """A part of the form begins; ``filename`` is None where it is no file, ``lines`` are its headers."""

    name: str
    filename: str | None
    lines: bytes = b""


@dataclass(frozen=True, slots=True)
class PartEnd:
    """The part that began last is over."""


FormEvent = PartHead | bytes | PartEnd
"""What is read: the head of a part, pieces of its content, its end."""


def boundary_of(content_type: bytes) -> bytes:
    """Return the boundary that a content type names. FormError where it is not that of a form."""
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != _FORM or not 0 < len(boundary) <= MAX_BOUNDARY:
        raise FormError(f"The body must be `multipart/form-data` with a `boundary` of 1 to {MAX_BOUNDARY} characters.")
    return boundary


class MultipartForm:
    """One form: ``feed`` it what arrives, and ``close`` it at the end."""

    def __init__(self, boundary: bytes) -> None:
        self._found: list[FormEvent] = []
        self._headers: list[tuple[bytearray, bytearray]] = []
        self._begun = self._over = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_begin": lambda: self._headers.append((bytearray(), bytearray())),
                "on_header_field": lambda data, start, end: self._headers[-1][0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._headers[-1][1].extend(data[start:end]),
                "on_headers_finished": lambda: self._found.append(_read_head(self._headers)),
                "on_part_data": lambda data, start, end: self._found.append(data[start:end]),
                "on_part_end": lambda: self._found.append(PartEnd()),
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER,
        )
        self._parser.logger = _SILENT

    def feed(self, data: bytes) -> list[FormEvent]:
        """Return what ``data`` adds. FormError."""
        self._found = []
        try:
            self._parser.write(data)
        except FormParserError as error:
            words = f"is broken: {error}." if self._begun else "does not begin with the `boundary` of its content-type."
            raise FormError(f"The form {words}") from error
        return self._found

    def close(self) -> None:
        """FormError where the form is not over."""
        if not self._over:
            raise FormError("The form is cut off: its last delimiter is missing.")

    def _begin(self) -> None:
        self._headers.clear()
        self._begun = True

    def _end(self) -> None:
        self._over = True


def _read_head(headers: list[tuple[bytearray, bytearray]]) -> PartHead:
    given = {bytes(name).lower(): bytes(value) for name, value in headers}
    kind, options = parse_options_header(given.get(_DISPOSITION, b""))
    if kind != b"form-data" or b"name" not in options:
        raise FormError("A part of the form has no `content-disposition: form-data` with a `name`.")
    filename = options.get(b"filename")
    lines = b"".join(b"%b: %b\r\n" % (bytes(name), bytes(value)) for name, value in headers)
    return PartHead(_text(options[b"name"]), None if filename is None else _text(filename), lines)


def _text(given: bytes) -> str:
    """Text as browsers quote it."""
    return given.decode(errors="replace").replace("%22", '"')
