"""Writes, reads and deletes tenants' files: in parts, each encrypted under its tenant's key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from cachefleet_controlplane.gateway.files.file_contents import DatabaseContents, FileContents
from cachefleet_controlplane.gateway.files.file_object import (
    FileBounds,
    FilePlace,
    FileStatus,
    KeptFile,
    Purpose,
    is_object_id,
    new_file_id,
)
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.gateway.files.list_query import ListQuery, listed
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.content.tenant_cipher import SealError, TenantCipher
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_core.tenancy import TenantId

T = TypeVar("T")

LABEL: Final = b"cachefleet/files/"
RETRY_SECONDS: Final = 5
STORAGE: Final = "storage_limit"
"""Code of an error: the tenant keeps as much as it may."""
FILE_BYTES: Final = "CACHEFLEET_BATCH_FILE_BYTES"
TENANT_BYTES: Final = "CACHEFLEET_BATCH_TENANT_BYTES"
FILES_URL: Final = "CACHEFLEET_FILES_URL"
_ELSEWHERE: Final = f"This file is in object storage, and none is set here ({FILES_URL})."
_EARLIER: Final = f"This file is in the object storage of an earlier {FILES_URL}, which cannot be asked now."
_FULL: Final = "The tenant's files would be more than {} bytes ({}). Delete some, or wait until they expire."


class StorageUnsetError(ApiError):
    """503 for a file in object storage, where none is set: asking this replica again changes nothing."""

    def __init__(self) -> None:
        super().__init__(503, _ELSEWHERE, headers={"retry-after": str(RETRY_SECONDS)})


class KeptFiles:
    """All files; each is its tenant's alone. New ones are kept in ``objects`` where that is given; those of another
    URL stay in its storage, which ``earlier`` makes (ValueError). ``wall_clock`` is in Unix seconds. Run ``run`` as a
    task where there are objects.
    """

    def __init__(
        self,
        store: StoreThread[SqlFiles],
        cipher: TenantCipher,
        bounds: FileBounds,
        *,
        objects: FileContents | None = None,
        earlier: Callable[[str], FileContents] | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._database = DatabaseContents(store)
        self._objects = objects
        self._make_earlier = earlier
        self._earlier: dict[str, FileContents] = {}
        self._cipher = cipher
        self.bounds = bounds
        self._wall_clock = wall_clock
        self._swept = asyncio.Event()

    async def begin(self, tenant: TenantId, name: str, purpose: str, *, bounded: bool = True) -> FileWriter:
        """Begin to write a file, which nobody sees until it is whole. ApiError 503.

        ``bounded``: within the bounds of a file and of its tenant.
        """
        now = self._wall_clock()
        contents = self._objects or self._database
        file = KeptFile(
            id=new_file_id(),
            tenant=tenant,
            name=name,
            purpose=purpose,
            bytes=0,
            status=FileStatus.WRITING.value,
            created=now,
            expires=now + self.bounds.writing_seconds,
            place=contents.place.value,
            storage=contents.url,
        )
        await self._ask("begin", lambda store: store.begin(file))
        return FileWriter(self, file, bounded=bounded)

    async def file(self, tenant: TenantId, file: str) -> KeptFile:
        """Return a tenant's file. ApiError 404, 503."""
        now = self._wall_clock()
        known = is_object_id(file)
        found = await self._ask("file", lambda store: store.file(tenant, file, now=now)) if known else None
        if found is None:
            raise no_such_file(file)
        return found

    async def page(self, tenant: TenantId, asked: ListQuery, *, purpose: str) -> dict[str, Any]:
        """Return a page of OpenAI's list of a tenant's files. ApiError 400, 503."""
        if purpose and purpose not in set(Purpose):
            return listed([], more=False)
        now = self._wall_clock()
        found = await self._ask("list", lambda store: store.page(tenant, asked, purpose=purpose, now=now))
        if found is None:
            raise ApiError(400, "`after` must be the id of a file.", param="after")
        return listed([file.shown() for file in found[: asked.limit]], more=len(found) > asked.limit)

    async def part(self, file: KeptFile, number: int) -> bytes:
        """Return one part of a file's content. ApiError 404 where it is gone, 503."""
        contents = self._contents(file)
        try:
            sealed = await contents.part(file, number)
        except StoreError as error:
            raise (unavailable() if contents in (self._database, self._objects) else in_earlier_storage()) from error
        found = None if sealed is None else await asyncio.to_thread(self._opened, sealed, file, number)
        if found is None:
            raise no_such_file(file.id)
        return found

    async def delete(self, tenant: TenantId, file: str) -> None:
        """Delete a tenant's file; what is in object storage at the next sweep. ApiError 404, 503."""
        if not await self._ask("delete", lambda store: store.delete(tenant, file, swept=self._wall_clock())):
            raise no_such_file(file)
        self._swept.set()

    async def abandon(self, file: KeptFile) -> None:
        """Delete a file that is not whole: what is still being written of it has time to arrive. ApiError 503."""
        swept = self._wall_clock() + self.bounds.landing_seconds
        await self._ask("delete", lambda store: store.delete(file.tenant, file.id, swept=swept))

    async def run(self) -> None:
        """Delete objects of files that have expired or were deleted until cancelled; at once after a deletion here."""
        while True:
            self._swept.clear()
            await self.sweep()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.bounds.swept_seconds):
                    await self._swept.wait()

    async def sweep(self) -> None:
        """Delete objects of files that are over, then their rows; what fails is tried again the next time."""
        if self._objects is None:
            return
        with suppress(StoreError):
            for url in await self._store.ask("sweep", lambda store: store.expired_storages(now=self._wall_clock())):
                with suppress(StoreError, ApiError):  # one that cannot be asked keeps no other from being swept
                    await self._sweep_storage(url, self._storage(url))

    async def _sweep_storage(self, url: str, contents: FileContents) -> None:
        """Delete what is over in one storage. StoreError."""
        over = partial(SqlFiles.expired_objects, storage=url, now=self._wall_clock())
        while files := await self._store.ask("sweep", over):
            for file in files:
                await contents.forget(file)
                await self._store.ask("sweep", partial(SqlFiles.drop, file=file))

    def _contents(self, file: KeptFile) -> FileContents:
        """Where a file's content is. ApiError 503."""
        if file.place == FilePlace.DATABASE:
            return self._database
        return self._storage(file.storage)

    def _storage(self, url: str) -> FileContents:
        """The object storage of files whose rows name it so. ApiError 503."""
        if self._objects is None:
            raise StorageUnsetError
        if url in ("", self._objects.url):
            return self._objects
        try:
            return self._earlier_storage(url)
        except ValueError as error:
            raise in_earlier_storage() from error

    def _earlier_storage(self, url: str) -> FileContents:
        """Storage of another URL, made once. ValueError."""
        if url not in self._earlier:
            if self._make_earlier is None:
                raise ValueError("nothing makes other storage")
            self._earlier[url] = self._make_earlier(url)
        return self._earlier[url]

    def _opened(self, sealed: bytes, file: KeptFile, number: int) -> bytes | None:
        """None for a part that another fleet key has sealed."""
        try:
            return self._cipher.open(sealed, tenant=file.tenant, place=place(file.id, number))
        except SealError:
            return None

    async def add(self, file: KeptFile, number: int, content: bytes, *, bounded: bool) -> None:
        """Write one part. ApiError 413 where the tenant keeps too much then and it is ``bounded``, 503."""
        where = place(file.id, number)
        sealed = await asyncio.to_thread(self._cipher.seal, content, tenant=file.tenant, place=where)
        expires = self._wall_clock() + self.bounds.writing_seconds
        try:
            kept = await self._contents(file).add(file, number, sealed, size=len(content), expires=expires)
        except StoreError as error:
            raise unavailable() from error
        if not kept:
            raise unavailable()
        if bounded and kept > self.bounds.tenant_bytes:
            raise ApiError(413, _FULL.format(self.bounds.tenant_bytes, TENANT_BYTES), code=STORAGE)

    async def finish(self, file: KeptFile, *, seconds: float) -> KeptFile:
        """Show a file that is whole, and keep it for so long. ApiError 503."""
        expires = file.created + seconds
        if not await self._ask("finish", lambda store: store.finish(file.id, expires=expires)):
            raise unavailable()
        return await self.file(file.tenant, file.id)

    async def _ask(self, operation: str, work: Callable[[SqlFiles], T]) -> T:
        """Call the store. ApiError 503 where it cannot be."""
        try:
            return await self._store.ask(operation, work)
        except StoreError as error:
            raise unavailable() from error


class FileWriter:
    """Writes one file, whose content comes in pieces; ``finish`` or ``abandon`` it."""

    def __init__(self, files: KeptFiles, file: KeptFile, *, bounded: bool) -> None:
        self._files = files
        self._file = file
        self._bounded = bounded
        self._buffer = bytearray()
        self._number = 0
        self.size = 0

    async def write(self, content: bytes) -> None:
        """Add content; returns once whole parts are stored. ApiError 413, 503."""
        self.size += len(content)
        if self._bounded and self.size > (most := self._files.bounds.file_bytes):
            raise ApiError(413, f"The file is larger than {most} bytes ({FILE_BYTES}).", param="file")
        self._buffer += content
        while len(self._buffer) >= self._file.part_bytes:
            await self._part(self._file.part_bytes)

    @property
    def id(self) -> str:
        """Of the file."""
        return self._file.id

    async def flush(self) -> None:
        """Write what is left. ApiError 413, 503."""
        if self._buffer:
            await self._part(len(self._buffer))

    async def finish(self, *, seconds: float) -> KeptFile:
        """Write what is left, and show the file, which is kept for so long. ApiError 413, 503."""
        await self.flush()
        return await self._files.finish(self._file, seconds=seconds)

    async def abandon(self) -> None:
        """Delete what was written; a store that cannot do it now forgets it later."""
        try:
            await self._files.abandon(self._file)
        except ApiError:
            return

    async def _part(self, size: int) -> None:
        await self._files.add(self._file, self._number, bytes(self._buffer[:size]), bounded=self._bounded)
        self._number += 1
        del self._buffer[:size]


def place(file: str, number: int) -> bytes:
    """What a part is bound to."""
    return f"{file}/{number}".encode()


def no_such_file(file: str) -> ApiError:
    """404: a tenant has no such file."""
    return ApiError(404, f"No such File object: {shown(file)}", param="id")


def in_earlier_storage() -> ApiError:
    """503: the storage of an earlier URL, where the file is, cannot be asked now."""
    return ApiError(503, _EARLIER, headers={"retry-after": str(RETRY_SECONDS)})


def unavailable() -> ApiError:
    """503: the store cannot be asked now."""
    return ApiError(503, "Files cannot be read or kept now.", headers={"retry-after": str(RETRY_SECONDS)})
