"""Handlers of ``/v1/files`` and of what is below it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from cachefleet_controlplane.gateway.files.file_object import KeptFile
from cachefleet_controlplane.gateway.files.kept_files import RETRY_SECONDS, KeptFiles, StorageUnsetError
from cachefleet_controlplane.gateway.files.list_query import list_query
from cachefleet_controlplane.gateway.files.object_exchange import named_id, tell, tenant_of
from cachefleet_controlplane.gateway.files.upload import Upload
from cachefleet_controlplane.gateway.health import Handler
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.wire.http_exchange import ClientGoneError, Receive, Reply, Scope

FILES_PATH: Final = "/v1/files"
CONTENT: Final = "content"
PAGE: Final = 10_000
"""As OpenAI has it: most files of a page, and as many where a client does not say."""
READS: Final = 3
"""How often a part is read, in all, where the store cannot be asked."""
_BYTES: Final = (b"content-type", b"application/octet-stream")


class FileRoutes:
    """Handlers by path and method; ``in_use`` tells whether something reads a file, which stays then."""

    def __init__(self, files: KeptFiles, in_use: Callable[[str], Awaitable[bool]]) -> None:
        self._files = files
        self._in_use = in_use
        self._all: Mapping[str, Handler] = {"GET": self._list, "POST": self._upload}
        self._one: Mapping[str, Handler] = {"GET": self._show, "DELETE": self._delete}
        self._content: Mapping[str, Handler] = {"GET": self._send}

    def handler(self, path: str) -> Mapping[str, Handler] | None:
        """Return the handlers of a path by method; None for a path that is none of these."""
        if path == FILES_PATH:
            return self._all
        file, _, below = path.removeprefix(f"{FILES_PATH}/").partition("/")
        if not file or not path.startswith(f"{FILES_PATH}/"):
            return None
        return {"": self._one, CONTENT: self._content}.get(below)

    async def _upload(self, scope: Scope, receive: Receive, reply: Reply) -> None:
        await tell(reply, (await Upload(self._files, tenant_of(scope)).receive(scope, receive)).shown())

    async def _list(self, scope: Scope, _: Receive, reply: Reply) -> None:
        asked = list_query(scope, page=PAGE, most=PAGE)
        await tell(reply, await self._files.page(tenant_of(scope), asked, purpose=asked.given.get("purpose", "")))

    async def _show(self, scope: Scope, _: Receive, reply: Reply) -> None:
        await tell(reply, (await self._files.file(tenant_of(scope), named_id(scope, FILES_PATH))).shown())

    async def _delete(self, scope: Scope, _: Receive, reply: Reply) -> None:
        file = named_id(scope, FILES_PATH)
        await self._files.file(tenant_of(scope), file)
        if await self._in_use(file):
            raise ApiError(409, "A batch that is not over reads this file: cancel that first.", code="file_in_use")
        await self._files.delete(tenant_of(scope), file)
        await tell(reply, {"id": file, "object": "file", "deleted": True})

    async def _send(self, scope: Scope, _: Receive, reply: Reply) -> None:
        file = await self._files.file(tenant_of(scope), named_id(scope, FILES_PATH))
        content = self._pieces(file)
        first = await anext(content, b"")  # before the head: an error still has a status
        await reply.start(200, [_BYTES])
        try:
            await reply.write(first)
            async for piece in content:
                await reply.write(piece)
        except ApiError as error:
            raise ClientGoneError from error  # it sees that the content has no end
        await reply.end()

    async def _pieces(self, file: KeptFile) -> AsyncIterator[bytes]:
        for number in range(file.parts):
            for left in reversed(range(READS)):
                try:
                    piece = await self._files.part(file, number)
                    break
                except StorageUnsetError:
                    raise
                except ApiError as error:
                    if error.status != 503 or not left:
                        raise
                    await asyncio.sleep(RETRY_SECONDS)
            yield piece
