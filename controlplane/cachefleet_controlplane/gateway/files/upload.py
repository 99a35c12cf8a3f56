"""An upload: a form with a file, its purpose and how long to keep it, read as it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from cachefleet_controlplane.gateway.files.file_object import MAX_NAME, KeptFile, Purpose, kept_name
from cachefleet_controlplane.gateway.files.kept_files import FileWriter, KeptFiles
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import BodyRefusedError, ClientGoneError, Receive, Scope
from cachefleet_controlplane.wire.multipart_form import (
    FormError,
    FormEvent,
    MultipartForm,
    PartEnd,
    PartHead,
    boundary_of,
)
from cachefleet_core.tenancy import TenantId

FILE: Final = "file"
PURPOSE: Final = "purpose"
ANCHOR: Final = "expires_after[anchor]"
SECONDS: Final = "expires_after[seconds]"
CREATED: Final = "created_at"
LEAST_SECONDS: Final = 3600
MOST_SECONDS: Final = 2_592_000
"""As OpenAI has them."""
MAX_FIELD: Final = 1024
"""Bytes of a field that is no file."""
MAX_FIELDS: Final = 16
_CLOSE: Final = {"connection": "close"}


class Upload:
    """One upload of a tenant."""

    def __init__(self, files: KeptFiles, tenant: TenantId) -> None:
        self._files = files
        self._tenant = tenant
        self._fields: dict[str, str] = {}
        self._writer: FileWriter | None = None
        self._field: tuple[str, bytearray] | None = None
        self._parts = 0

    async def receive(self, scope: Scope, receive: Receive) -> KeptFile:
        """Keep the file of a request. ApiError 400, 408, 413, 503; ClientGoneError. What is not whole is deleted."""
        try:
            form = MultipartForm(boundary_of(_content_type(scope)))
            async for piece in _pieces(receive, self._files.bounds.stall_seconds):
                for event in form.feed(piece):
                    await self._take(event)
            form.close()
            return await self._finish()
        except BaseException as error:
            if self._writer is not None:
                await asyncio.shield(self._writer.abandon())
            if isinstance(error, FormError):
                raise ApiError(400, str(error), headers=_CLOSE) from error
            raise

    async def _take(self, event: FormEvent) -> None:
        if isinstance(event, PartHead):
            await self._begin(event)
        elif isinstance(event, PartEnd):
            self._end()
        elif self._field is None:
            await self._write(event)
        else:
            self._add(event)

    async def _begin(self, head: PartHead) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise FormError(f"The form has more than {MAX_FIELDS} fields.")
        if head.name != FILE:
            self._field = head.name, bytearray()
        elif self._writer is not None:
            raise FormError("The form has more than one `file`.")
        else:
            name = kept_name(head.filename or FILE)
            self._writer = await self._files.begin(self._tenant, name, Purpose.BATCH)

    async def _write(self, content: bytes) -> None:
        assert self._writer is not None  # noqa: S101 - what is no field is the file
        await self._writer.write(content)

    def _add(self, content: bytes) -> None:
        assert self._field is not None  # noqa: S101 - as the caller has seen
        name, value = self._field
        value += content
        if len(value) > MAX_FIELD:
            raise FormError(f"The field `{name[:MAX_NAME]}` is over {MAX_FIELD} bytes.")

    def _end(self) -> None:
        if self._field is not None:
            name, value = self._field
            self._fields[name] = value.decode(errors="replace")
            self._field = None

    async def _finish(self) -> KeptFile:
        if self._writer is None:
            raise ApiError(400, "`file` is required.", param=FILE)
        purpose = self._fields.get(PURPOSE, "")
        if purpose != Purpose.BATCH:
            raise ApiError(
                400, f"`purpose` must be `{Purpose.BATCH}`: files are kept for batches alone.", param=PURPOSE
            )
        if not self._writer.size:
            raise ApiError(400, "The file is empty.", param=FILE)
        return await self._writer.finish(seconds=min(self._files.bounds.seconds, self._seconds()))

    def _seconds(self) -> float:
        """How long the client has the file kept."""
        if SECONDS not in self._fields and ANCHOR not in self._fields:
            return self._files.bounds.seconds
        if self._fields.get(ANCHOR, CREATED) != CREATED:
            raise ApiError(400, f"`{ANCHOR}` must be `{CREATED}`.", param=ANCHOR)
        given = self._fields.get(SECONDS, "")
        seconds = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(MOST_SECONDS)) else 0
        if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
            raise ApiError(400, f"`{SECONDS}` must be from {LEAST_SECONDS} to {MOST_SECONDS}.", param=SECONDS)
        return seconds


async def _pieces(receive: Receive, stall_seconds: float) -> AsyncIterator[bytes]:
    """Iterate over a body. ApiError 408 where nothing arrives for so long, 503 or 400 where the server refuses it."""
    more = True
    while more:
        try:
            async with asyncio.timeout(stall_seconds):
                message = await receive()
        except TimeoutError as error:
            raise ApiError(408, f"Nothing of the body arrived for {stall_seconds:g} s.", headers=_CLOSE) from error
        except BodyRefusedError as error:
            raise ApiError(error.status, "The body is not taken.", headers=_CLOSE) from error
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _content_type(scope: Scope) -> bytes:
    found: bytes = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    return found
