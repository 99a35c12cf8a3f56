"""ETags of documents: reading one only if it has changed, changing it only if it has not (RFC 9110, 13).

A tag is of what a document says, without figures that grow by themselves with the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from fastapi import Header, HTTPException, Response

from cachefleet_controlplane.admin.admin_openapi import Responses, refusals
from cachefleet_controlplane.admin.schemas import Schema

T = TypeVar("T", bound=Schema)

IfMatch = Annotated[str | None, Header(max_length=2048, description="Change it only while its ETag is one of these.")]
IfNoneMatch = Annotated[
    str | None, Header(max_length=2048, description="Answer 304 while its ETag is still one of these.")
]
UNCHANGED: Final[Responses] = {304: {"description": "It has not changed"}}
CHANGED: Final = refusals(412)
_OF_TIME: Final = frozenset({"sampledAt", "reportAgeSeconds"})


def entity_tag(document: Schema | msgspec.Struct) -> str:
    """The ETag of a document; weak where figures of time are left out of it."""
    if isinstance(document, msgspec.Struct):
        whole = msgspec.json.decode(msgspec.json.encode(document))
    else:
        whole = document.model_dump(mode="json", by_alias=True)
    steady = _steady(whole)
    digest = hashlib.sha256(repr(steady).encode()).hexdigest()[:32]
    return f'"{digest}"' if steady == whole else f'W/"{digest}"'


def tagged(document: T, response: Response, if_none_match: str | None) -> T | Response:
    """The document with its ETag, or 304 where the client has it."""
    tag = entity_tag(document)
    if if_none_match is not None and _among(tag, if_none_match):
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return document


def encoded(document: msgspec.Struct, headers: dict[str, str] | None = None) -> Response:
    """The document's JSON."""
    return Response(msgspec.json.encode(document), media_type="application/json", headers=headers)


def encoded_tagged(document: msgspec.Struct, if_none_match: str | None) -> Response:
    """The document's JSON with its ETag, or 304 where the client has it."""
    tag = entity_tag(document)
    if if_none_match is not None and _among(tag, if_none_match):
        return Response(status_code=304, headers={"etag": tag})
    return encoded(document, {"etag": tag})


def expecting(if_match: str | None, shown: Callable[[Any], Schema]) -> Callable[[Any], None]:
    """A check of what is about to be changed, in the form that ``shown`` gives it. HTTPException 412."""

    def check(present: Any) -> None:
        tag = entity_tag(shown(present))
        if if_match is not None and not _among(tag, if_match):
            raise HTTPException(412, "it was changed meanwhile: read it again", headers={"ETag": tag})

    return check


def _among(tag: str, header: str) -> bool:
    """Whether a header names the tag, or is ``*``; a proxy may have made it weak."""
    named = {part.strip().removeprefix("W/") for part in header.split(",")}
    return bool({"*", tag.removeprefix("W/")} & named)


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(part) for name, part in value.items() if name not in _OF_TIME}
    return [_steady(part) for part in value] if isinstance(value, list) else value
