"""SQL repository of tenants' files and their encrypted parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.gateway.files.file_object import FilePlace, FileStatus, KeptFile
from cachefleet_controlplane.gateway.files.list_query import ListQuery
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.batch_tables import FilePartRow, FileRow
from cachefleet_core.tenancy import TenantId

PRUNE_FILES: Final = 16
"""Files deleted in one transaction: each has up to thousands of parts."""

_files = cast("Table", FileRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_parts = cast("Table", FilePartRow.__table__)  # type: ignore[attr-defined]
_in_database = _files.c.place == FilePlace.DATABASE


class SqlFiles:
    """Blocking calls on the database; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Open the database; to be called before all else, and again after a StoreError."""
        self._database.open()

    def begin(self, file: KeptFile) -> None:
        """Insert a file that is to be written."""
        with self._database.transaction(write=True) as connection:
            begin(connection, file)

    def add_part(self, file: str, number: int, sealed: bytes, *, size: int, expires: float) -> int:
        """Add a part of so many bytes to a file that is being written, which is kept until ``expires`` for the next.

        Return the bytes of all files of its tenant; 0 where the file is not there any more.
        """
        with self._database.transaction(write=True) as connection:
            return add_part(connection, file, number, sealed, size=size, expires=expires)

    def grow(self, file: str, *, size: int, expires: float) -> int:
        """As ``add_part``, of a part that is kept elsewhere."""
        with self._database.transaction(write=True) as connection:
            tenant = _grown(connection, file, size=size, expires=expires)
            return 0 if tenant is None else _kept(connection, tenant)

    def finish(self, file: str, *, expires: float) -> bool:
        """Show a file that is whole; False where it is not there any more."""
        with self._database.transaction(write=True) as connection:
            return finish(connection, file, expires=expires)

    def file(self, tenant: TenantId, file: str, *, now: float) -> KeptFile | None:
        """Return a tenant's file; None where it has none of that id."""
        with self._database.transaction() as connection:
            row = connection.execute(select(_files).where(_valid(tenant, now), _files.c.id == file)).mappings().first()
        return None if row is None else _record(row)

    def part(self, file: str, number: int) -> bytes | None:
        """Return one sealed part; None for none."""
        query = select(_parts.c.sealed).where(_parts.c.file == file, _parts.c.number == number)
        with self._database.transaction() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else bytes(found)

    def page(self, tenant: TenantId, asked: ListQuery, *, purpose: str, now: float) -> Sequence[KeptFile] | None:
        """Return a page of a tenant's files and one more where there are more; None where ``after`` is none of them."""
        query = select(_files).where(_valid(tenant, now))
        if purpose:
            query = query.where(_files.c.purpose == purpose)
        with self._database.transaction() as connection:
            if asked.after:
                last = connection.execute(select(_files).where(_valid(tenant, now), _files.c.id == asked.after))
                if (row := last.mappings().first()) is None:
                    return None
                query = query.where(beyond(_files, row, oldest_first=asked.oldest_first))
            ordered = query.order_by(*in_order(_files, oldest_first=asked.oldest_first)).limit(asked.limit + 1)
            return [_record(each) for each in connection.execute(ordered).mappings()]

    def delete(self, tenant: TenantId, file: str, *, swept: float) -> bool:
        """Delete a tenant's file, whole or not; False where it has none of that id. One in object storage is seen no
        more, and its row is there for what sweeps that, from ``swept`` on.
        """
        own = (_files.c.tenant == tenant) & (_files.c.id == file) & (_files.c.status != FileStatus.DELETED)
        with self._database.transaction(write=True) as connection:
            gone = connection.execute(delete(_files).where(own & _in_database)).rowcount
            values = {"status": FileStatus.DELETED.value, "expires": swept}
            return gone + connection.execute(update(_files).where(own).values(values)).rowcount > 0

    def prune(self, *, now: float) -> int:
        """Delete some files in the database that have expired; return how many. Called until that is 0."""
        expired = select(_files.c.id).where(_files.c.expires <= now, _in_database).limit(PRUNE_FILES)
        with self._database.transaction(write=True) as connection:
            over = connection.execute(expired).scalars()
            return connection.execute(delete(_files).where(_files.c.id.in_(over.all()))).rowcount

    def expired_storages(self, *, now: float) -> list[str]:
        """Return the object storages, as rows name them, in which files have expired or are deleted."""
        query = select(_files.c.storage).where(_files.c.expires <= now, ~_in_database).distinct()
        with self._database.transaction() as connection:
            return list(connection.execute(query).scalars())

    def expired_objects(self, storage: str, *, now: float) -> list[str]:
        """Return some files in an object storage that have expired or are deleted: their objects go first."""
        there = ~_in_database & (_files.c.storage == storage)
        query = select(_files.c.id).where(_files.c.expires <= now, there).limit(PRUNE_FILES)
        with self._database.transaction() as connection:
            return list(connection.execute(query).scalars())

    def drop(self, file: str) -> None:
        """Delete the row of a file whose objects are gone."""
        with self._database.transaction(write=True) as connection:
            connection.execute(delete(_files).where(_files.c.id == file))


def begin(connection: Connection, file: KeptFile) -> None:
    """Insert a file that is to be written."""
    connection.execute(insert(_files), {name: getattr(file, name) for name in KeptFile.__struct_fields__})


def add_part(connection: Connection, file: str, number: int, sealed: bytes, *, size: int, expires: float) -> int:
    """As ``SqlFiles.add_part``."""
    tenant = _grown(connection, file, size=size, expires=expires)
    if tenant is None:
        return 0
    connection.execute(insert(_parts), {"file": file, "number": number, "sealed": sealed})
    return _kept(connection, tenant)


def _grown(connection: Connection, file: str, *, size: int, expires: float) -> TenantId | None:
    """Count bytes of a file that is being written; its tenant, None where it is not there any more."""
    values = {"bytes": _files.c.bytes + size, "expires": expires}
    grown = update(_files).where(_files.c.id == file, _files.c.status == FileStatus.WRITING).values(values)
    return connection.execute(grown.returning(_files.c.tenant)).scalar()


def _kept(connection: Connection, tenant: TenantId) -> int:
    """Bytes of all files of a tenant."""
    own = (_files.c.tenant == tenant) & (_files.c.status != FileStatus.DELETED)
    return int(connection.execute(select(func.sum(_files.c.bytes)).where(own)).scalar() or 0)


def finish(connection: Connection, file: str, *, expires: float) -> bool:
    """As ``SqlFiles.finish``."""
    written = (_files.c.id == file) & (_files.c.status == FileStatus.WRITING)
    values = {"status": FileStatus.PROCESSED.value, "expires": expires}
    return connection.execute(update(_files).where(written).values(values)).rowcount > 0


def in_order(table: Table, *, oldest_first: bool) -> tuple[Any, Any]:
    """The order of a list: by time of making, then by id."""
    columns = table.c.created, table.c.id
    return columns if oldest_first else (columns[0].desc(), columns[1].desc())


def beyond(table: Table, row: RowMapping, *, oldest_first: bool) -> Any:
    """Condition of what comes after a row of such a list."""
    at, same = table.c.created, table.c.created == row["created"]
    if oldest_first:
        return (at > row["created"]) | (same & (table.c.id > row["id"]))
    return (at < row["created"]) | (same & (table.c.id < row["id"]))


def _valid(tenant: TenantId, now: float) -> Any:
    whole = (_files.c.tenant == tenant) & (_files.c.status == FileStatus.PROCESSED)
    return whole & (_files.c.expires > now)


def _record(row: RowMapping) -> KeptFile:
    return KeptFile(**{name: row[name] for name in KeptFile.__struct_fields__})
