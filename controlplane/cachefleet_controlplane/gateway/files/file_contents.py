"""Where the content of files is kept: the one Protocol, and the database as the first who has it.

A file is kept in sealed parts, numbered from 0. The bytes of a tenant are counted in its rows wherever they are kept.
"""

from __future__ import annotations

from typing import Protocol

from cachefleet_controlplane.gateway.files.file_object import FilePlace, KeptFile
from cachefleet_controlplane.gateway.files.file_repository import SqlFiles
from cachefleet_controlplane.store.content.store_thread import StoreThread


class FileContents(Protocol):
    """Keeps sealed parts; every failure is a StoreError, of which no text is anything of a content."""

    @property
    def place(self) -> FilePlace:
        """What rows of files say that are kept here."""
        ...

    @property
    def url(self) -> str:
        """Of the object storage; "" in the database."""
        ...

    async def add(self, file: KeptFile, number: int, sealed: bytes, *, size: int, expires: float) -> int:
        """Add a part that is ``size`` bytes unsealed to a file that is being written; keep it until ``expires`` for the
        next. Return the bytes of all files of its tenant; 0 where the file is not there any more.
        """
        ...

    async def part(self, file: KeptFile, number: int) -> bytes | None:
        """Return a sealed part; None for none."""
        ...

    async def forget(self, file: str) -> None:
        """Delete all parts of a file whose row is gone, or nobody sees any more; nothing where there are none."""
        ...


class DatabaseContents:
    """Parts in the database, in rows that go with their file's."""

    place = FilePlace.DATABASE
    url = ""

    def __init__(self, store: StoreThread[SqlFiles]) -> None:
        self._store = store

    async def add(self, file: KeptFile, number: int, sealed: bytes, *, size: int, expires: float) -> int:
        """As the Protocol says."""
        return await self._store.ask(
            "write", lambda store: store.add_part(file.id, number, sealed, size=size, expires=expires)
        )

    async def part(self, file: KeptFile, number: int) -> bytes | None:
        """As the Protocol says."""
        return await self._store.ask("read", lambda store: store.part(file.id, number))

    async def forget(self, file: str) -> None:
        """They went with the row."""
