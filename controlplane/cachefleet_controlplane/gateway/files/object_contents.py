"""Content of files in object storage, by URL: S3 and what speaks it, Google Cloud Storage, Azure, or a folder.

Each sealed part is an object of its own, ``FILE/NUMBER`` below the URL's path: nothing larger than a part is ever in
memory, and what an upload leaves that breaks off is found by the row of its file. The library (obstore, an extra that
is imported here alone) reads credentials from the environment. Of its errors only the kind is told: services repeat
names of keys in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore, from_url

from cachefleet_controlplane.gateway.files.file_object import FilePlace, KeptFile
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.gateway.files.files_url import FOLDER
from cachefleet_controlplane.store.content.store_thread import StoreThread
from cachefleet_controlplane.store.store_errors import StoreError

logger = logging.getLogger(__name__)
T = TypeVar("T")

RETRIES: Final = 3
RETRY_SECONDS: Final = 20
"""The library tries a request again so often, for so long."""
CALL_SECONDS: Final = 30.0
"""Longest wait for one part, with all that; as the library's for one request."""
LISTED: Final = 1000
"""Objects that are deleted at once."""


def object_storage(url: str) -> ObjectStore:
    """Return the library's store of a usable URL, which asks nobody yet. ValueError where it takes that for none."""
    try:
        if urlsplit(url).scheme == FOLDER:
            return from_url(url, automatic_cleanup=True, mkdir=True)
        # Options of its HTTP client are the environment's, as AWS_ALLOW_HTTP.
        return from_url(url, retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)})
    except (BaseError, OSError) as error:
        raise ValueError(f"the object storage cannot be used: {type(error).__name__}") from error


class ObjectContents:
    """Parts as objects below a usable URL; what tenants have is counted in the rows of ``store``. ``failed`` is called
    with the operation that failed. ValueError where the library takes the URL for none.
    """

    place = FilePlace.OBJECTS

    def __init__(
        self, url: str, store: StoreThread[SqlFiles], *, failed: Callable[[str], None] = lambda _: None
    ) -> None:
        self.url = url
        self._storage = object_storage(url)
        self._store = store
        self._count_failure = failed
        self._problem = ""

    async def add(self, file: KeptFile, number: int, sealed: bytes, *, size: int, expires: float) -> int:
        """As the Protocol says. It is counted first: what is never written is deleted by that."""
        kept = await self._store.ask("write", lambda store: store.grow(file.id, size=size, expires=expires))
        if kept:
            await self._ask(
                "put", obstore.put_async(self._storage, _name(file.id, number), sealed, use_multipart=False)
            )
        return kept

    async def part(self, file: KeptFile, number: int) -> bytes | None:
        """As the Protocol says."""
        return await self._ask("get", self._read(_name(file.id, number)))

    async def forget(self, file: str) -> None:
        """As the Protocol says."""
        while names := await self._ask("list", self._names(file)):
            await self._ask("remove", self._delete(names))

    async def _read(self, name: str) -> bytes | None:
        try:
            found = await obstore.get_async(self._storage, name)
        except FileNotFoundError:
            return None
        return bytes(await found.bytes_async())

    async def _names(self, file: str) -> list[str]:
        """Some of a file's objects."""
        async for listed in obstore.list(self._storage, prefix=file, chunk_size=LISTED):
            return [one["path"] for one in listed]
        return []

    async def _delete(self, names: list[str]) -> None:
        try:
            await obstore.delete_async(self._storage, names)
        except FileNotFoundError:
            return  # another replica has deleted it: what is left is listed again

    async def _ask(self, operation: str, call: Awaitable[T]) -> T:
        """Wait for a call of the library. StoreError."""
        try:
            found = await _asked(call)
        except StoreError as error:
            self._count_failure(operation)
            if self._problem != str(error):
                fields = {"kind": error.kind, "operation": operation, "storage": self.url}
                logger.warning("files cannot be kept: %s", error, extra=fields)
            self._problem = str(error)
            raise
        self._problem = ""
        return found


async def _asked(call: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await call
    except TimeoutError as error:
        raise StoreError("slow", "object storage did not answer in time") from error
    except (BaseError, OSError, ValueError) as error:
        raise StoreError("unavailable", f"object storage: {type(error).__name__}") from error


def _name(file: str, number: int) -> str:
    return f"{file}/{number:06d}"
