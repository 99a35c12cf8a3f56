"""Speech to text: a form (multipart/form-data, RFC 7578) with a file, and the form that a worker is sent instead. Pure.

The form is held whole, within the bounds of every body, so that it may name its model before the file or after it, and
another worker can be sent it where one fails. The file is never looked into. Fields are read as the members of a JSON
body are, so the same is taken out and put in; what does not change stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.headers import Header
from cachefleet_controlplane.wire.json_members import READ_ERRORS, Fields, encode
from cachefleet_controlplane.wire.multipart_form import FormError, MultipartForm, PartEnd, PartHead, boundary_of

CONTENT_TYPE: Final = b"content-type"
WORKERS_CONTENT_TYPE: Final = b":content-type"
"""In place of a header's name: what the body for a worker is, where that is not JSON. No client can send it."""
FILE: Final = "file"
MAX_PARTS: Final = 64
MAX_FIELD_BYTES: Final = 64 * 1024
"""Of the value of a part that is no file."""
_ARGUMENTS: Final = "vllm_xargs"
"""The one field whose text is a JSON object."""
_SEVERAL: Final = "[]"
"""How a name ends that may be given more than once."""
_fields = msgspec.json.Decoder(Fields)


class FormPart(Struct, frozen=True):
    """One part of a form, with its headers as they came."""

    name: str
    head: bytes
    content: bytes
    is_file: bool


class Form(Struct, frozen=True):
    """A form's parts, in their order, and the boundary between them."""

    boundary: bytes
    parts: tuple[FormPart, ...]

    @property
    def content_type(self) -> bytes:
        """The header that says so."""
        return b'multipart/form-data; boundary="%s"' % self.boundary

    def fields(self) -> Fields:
        """The fields as members of a JSON object; of a name that may be given more than once none. ApiError 400."""
        single = [part for part in self.parts if not part.is_file and not part.name.endswith(_SEVERAL)]
        return {part.name: _member(part) for part in single}

    def with_fields(self, members: bytes) -> bytes:
        """The form with these members of a JSON object in place of its fields: changed, left out and added."""
        left = _fields.decode(members)
        pieces: list[bytes] = []
        for part in self.parts:
            keeps = part.is_file or part.name.endswith(_SEVERAL)
            value = part.content if keeps else _text(left.pop(part.name, None))
            if value is not None:
                pieces += [b"--", self.boundary, b"\r\n", part.head, b"\r\n", value, b"\r\n"]
        for name, raw in left.items():
            head = b'content-disposition: form-data; name="%s"' % name.encode()
            pieces += [b"--", self.boundary, b"\r\n", head, b"\r\n\r\n", _text(raw) or b"", b"\r\n"]
        return b"".join([*pieces, b"--", self.boundary, b"--\r\n"])


def read_form(body: bytes, content_type: bytes) -> Form:
    """Return the form that a body is. ApiError 400 that says what is wrong with it, and which field."""
    form = _read(body, content_type)
    names = [part.name for part in form.parts if not part.name.endswith(_SEVERAL)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ApiError(400, f"The form has `{twice}` more than once.", param=twice)
    if not any(part.is_file and part.name == FILE for part in form.parts):
        raise ApiError(400, f"The form has no `{FILE}`: a part with a file name.", param=FILE)
    return form


def content_type_of(headers: Mapping[bytes, bytes] | list[Header]) -> bytes:
    """The content type among headers; b"" where there is none."""
    return dict(headers).get(CONTENT_TYPE, b"")


def named_model(body: bytes, content_type: bytes) -> str:
    """The model that a form names, "" for none. ApiError 400."""
    form = read_form(body, content_type)
    return next((part.content.decode(errors="replace") for part in form.parts if part.name == "model"), "")


def _read(body: bytes, content_type: bytes) -> Form:
    try:
        boundary = boundary_of(content_type)
        return Form(boundary, tuple(_parts(body, boundary)))
    except FormError as error:
        raise ApiError(400, str(error)) from error


def _parts(body: bytes, boundary: bytes) -> Iterator[FormPart]:
    form = MultipartForm(boundary)
    pieces: list[bytes] = []
    heads = 0
    for event in form.feed(body):
        match event:
            case PartHead():
                head, pieces, heads = event, [], heads + 1
            case PartEnd():
                yield FormPart(head.name, head.lines, b"".join(pieces), head.filename is not None)
            case piece:
                pieces.append(piece)
        if heads > MAX_PARTS:
            raise FormError(f"The form has more than {MAX_PARTS} parts.")
    form.close()


def _member(part: FormPart) -> Raw:
    if len(part.content) > MAX_FIELD_BYTES:
        raise ApiError(400, f"`{part.name}` may have {MAX_FIELD_BYTES} bytes.", param=part.name)
    try:
        text = part.content.decode()
        if part.name != _ARGUMENTS:
            return Raw(encode(text))
        _fields.decode(text)
    except UnicodeDecodeError as error:
        raise ApiError(400, f"`{part.name}` is no UTF-8.", param=part.name) from error
    except READ_ERRORS as error:
        raise ApiError(400, f"`{part.name}` must be a JSON object.", param=part.name) from error
    return Raw(part.content)


def _text(raw: Raw | None) -> bytes | None:
    """A member as the text of a field; None for none."""
    if raw is None:
        return None
    value = bytes(raw)
    return msgspec.json.decode(value, type=str).encode() if value.startswith(b'"') else value
