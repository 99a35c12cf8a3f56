"""Tenants and their keys in SQL. Each change raises the revision in its own transaction, so that replicas notice it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Table, case, delete, func, insert, select, update
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.store.access_marker import ClosedReason, Mark, StoreAccess, closed, mark_of
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.batch_tables import BatchRow, FileRow
from cachefleet_controlplane.store.schema.continuation_tables import CheckpointRow, ConversationRow, ResponseRow
from cachefleet_controlplane.store.schema.tables import KeyRow, TenancyRow, TenantRow
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_controlplane.store.tenant_records import KeyRecord, KeyState, Tenancy, TenantRecord
from cachefleet_core.tenancy import TenantId

logger = logging.getLogger(__name__)
T = TypeVar("T")

MAX_TENANTS: Final = 10_000
MAX_KEYS: Final = 100
"""Keys of one tenant; ended ones are deleted for new ones, oldest first."""

_tenancy = cast("Table", TenancyRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_tenants = cast("Table", TenantRow.__table__)  # type: ignore[attr-defined]
_keys = cast("Table", KeyRow.__table__)  # type: ignore[attr-defined]
_conversations = cast("Table", ConversationRow.__table__)  # type: ignore[attr-defined]
_checkpoints = cast("Table", CheckpointRow.__table__)  # type: ignore[attr-defined]
_responses = cast("Table", ResponseRow.__table__)  # type: ignore[attr-defined]
_batches = cast("Table", BatchRow.__table__)  # type: ignore[attr-defined]
_files = cast("Table", FileRow.__table__)  # type: ignore[attr-defined]


Check = Callable[[TenantRecord], None]
"""Looks at a tenant that is about to be changed, in the same transaction; what it raises prevents that."""


class TenantNotFoundError(LookupError):
    """There is no such tenant, or it has no such key."""


class TenantConflictError(Exception):
    """It exists already, there would be too many, or other replicas would not see the change."""


class SqlTenants:
    """Repository of tenants and keys. Calls block; a failure of the database is a StoreError and changes nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.problem = ""
        """Why the marker is not what it has to be; "" where it is."""

    def open(self) -> None:
        """Connect and migrate; may be called again after a StoreError."""
        self._database.open()

    def never_keyed(self) -> bool:
        """Whether this database, which cannot be read, certainly has no key and never had one."""
        if not self._database.local:
            return False
        try:
            mark = self._database.marker.read()
        except StoreError:
            return False
        return mark is Mark.UNKEYED or (mark is Mark.ABSENT and self._database.never_made)

    def load(self, known: Tenancy | None) -> Tenancy | None:
        """All tenants and keys; None where that is ``known``. A new, empty database is filled from ``known``.

        What was found is told to the marker; where that fails, ``problem`` says so, and it is tried at the next call.
        """
        with self._database.transaction() as connection:
            row = _state(connection)
            same = known is not None and (known.store, known.revision) == row[:2]
            found = known if known is not None and same else _all(connection, *row)
        if known is not None and _made_anew(found, known):
            found = self._restore(known)
        if not same:
            found = self._judged(found, had_keys=known is not None and bool(known.keys or known.closed))
        self._mark(mark_of(found.access, found.closed))
        return None if same else found

    def _judged(self, found: Tenancy, *, had_keys: bool) -> Tenancy:
        """Say whether it is closed. The marker tells of keys before they are committed: a store that seems to have lost
        them is read once more, when whoever is making some is done.
        """
        # What the store says itself needs no marker, which may be out of reach.
        mark = Mark.ABSENT if found.access else self._database.marker.read()
        why = closed(found.access, mark, had_keys=had_keys)
        if why is ClosedReason.LOST and not had_keys and self._database.local:
            with suppress(StoreError), self._database.transaction(write=True) as connection:
                found = _all(connection, *_state(connection))
                why = closed(found.access, self._database.marker.read(), had_keys=had_keys)
        return replace(found, closed=why)

    def tenants(self) -> list[TenantRecord]:
        """All tenants by name."""
        with self._database.transaction() as connection:
            return _tenant_records(connection)

    def tenant(self, name: TenantId) -> TenantRecord:
        """One tenant. TenantNotFoundError."""
        with self._database.transaction() as connection:
            return _tenant(connection, name)

    def create(self, tenant: TenantRecord) -> None:
        """Add a tenant. TenantConflictError where the name is taken, or there are MAX_TENANTS."""
        with self._changing() as connection:
            if connection.execute(select(_tenants.c.name).where(_tenants.c.name == tenant.name)).first():
                raise TenantConflictError(f"tenant {tenant.name} exists already")
            if (connection.execute(select(func.count()).select_from(_tenants)).scalar() or 0) >= MAX_TENANTS:
                raise TenantConflictError(f"there are {MAX_TENANTS} tenants, and there can be no more")
            connection.execute(insert(_tenants), _row(tenant))

    def change(self, name: TenantId, fields: Mapping[str, object], check: Check = lambda _: None) -> TenantRecord:
        """Set some fields of a tenant; the changed tenant. TenantNotFoundError; what ``check`` raises of it before."""
        with self._changing() as connection:
            check(_tenant(connection, name))
            if fields:
                connection.execute(update(_tenants).where(_tenants.c.name == name).values(**fields))
            return _tenant(connection, name)

    def delete(self, name: TenantId, check: Check = lambda _: None) -> None:
        """Delete a tenant with its keys and conversations; its usage stays. Errors as of ``change``."""
        with self._changing() as connection:
            check(_tenant(connection, name))
            own = select(_conversations.c.id).where(_conversations.c.tenant == name)
            connection.execute(delete(_checkpoints).where(_checkpoints.c.conversation.in_(own)))
            connection.execute(delete(_conversations).where(_conversations.c.tenant == name))
            connection.execute(delete(_responses).where(_responses.c.tenant == name))
            connection.execute(delete(_batches).where(_batches.c.tenant == name))
            _delete_files(connection, name)
            connection.execute(delete(_keys).where(_keys.c.tenant == name))
            connection.execute(delete(_tenants).where(_tenants.c.name == name))

    def keys(self, tenant: TenantId) -> list[KeyRecord]:
        """A tenant's keys, oldest first. TenantNotFoundError."""
        with self._database.transaction() as connection:
            _tenant(connection, tenant)
            return _key_records(connection, tenant)

    def add_key(self, key: KeyRecord) -> None:
        """Add a key. TenantNotFoundError; TenantConflictError where the tenant has MAX_KEYS active ones."""
        with self._keying() as connection:
            _add(connection, key)

    def rotate(self, key: KeyRecord, *, grace_seconds: float) -> None:
        """Add a key; the tenant's others end ``grace_seconds`` after it was made. Errors as ``add_key``."""
        end = key.created + grace_seconds
        with self._keying() as connection:
            living = (_keys.c.tenant == key.tenant) & _keys.c.revoked.is_(None)
            later = _keys.c.expires.is_(None) | (_keys.c.expires > end)
            connection.execute(update(_keys).where(living & later).values(expires=end))
            _add(connection, key)

    def admit_all(self) -> None:
        """Serve requests without a key, whatever was before. TenantConflictError where there are keys."""
        with self._changing() as connection:
            if (count := len(_key_records(connection))) > 0:
                raise TenantConflictError(f"there are {count} API keys: delete their tenants first")
            _say(connection, StoreAccess.OPEN)

    def revoke(self, tenant: TenantId, key_id: str, *, now: float) -> KeyRecord:
        """Revoke a key; its record, unchanged where it was revoked before. TenantNotFoundError."""
        with self._changing() as connection:
            named = (_keys.c.tenant == tenant) & (_keys.c.id == key_id)
            connection.execute(update(_keys).where(named & _keys.c.revoked.is_(None)).values(revoked=now))
            row = connection.execute(select(_keys).where(named)).mappings().first()
        if row is None:
            raise TenantNotFoundError(f"tenant {tenant} has no key {key_id}")
        return _record(row, KeyRecord)

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A write transaction that raises the revision first: in PostgreSQL its row is the lock that orders changes."""
        with self._database.transaction(write=True) as connection:
            connection.execute(update(_tenancy).values(revision=_tenancy.c.revision + 1))
            yield connection

    @contextmanager
    def _keying(self) -> Iterator[Connection]:
        """As ``_changing``, of a change that makes keys: a local marker says so before they are committed, so that no
        failure after that widens who is served. A StoreError of the marker refuses the change.
        """
        before = self._database.marker.read()
        try:
            with self._changing() as connection:
                yield connection
                if self._database.local and before is not Mark.KEYED:
                    self._database.marker.write(Mark.KEYED)
        except StoreError:
            self._unmark(before)
            raise

    def _unmark(self, before: Mark) -> None:
        """Have the marker say again what it said before keys were not made; not where the store may have them."""
        if not self._database.local or self._database.marker.read() is before:
            return
        with suppress(StoreError):
            with self._database.transaction() as connection:
                found = _all(connection, *_state(connection))
            if found.access is not StoreAccess.KEYED:
                lost = before not in {Mark.ABSENT, Mark.UNKEYED}
                self._database.marker.write(Mark.LOST if lost else Mark.UNKEYED)

    def _restore(self, known: Tenancy) -> Tenancy:
        changing = self._keying if known.access is StoreAccess.KEYED else self._changing
        with changing() as connection:
            if not _tenant_records(connection):
                if known.tenants:
                    connection.execute(insert(_tenants), [_row(tenant) for tenant in known.tenants])
                if known.keys:
                    connection.execute(insert(_keys), [_row(key) for key in known.keys])
                _say(connection, known.access)
            return _all(connection, *_state(connection))

    def _mark(self, mark: Mark) -> None:
        marker = self._database.marker
        try:
            there, told = marker.read(), marker.says(mark)
            if not told and (self._database.local or {there, mark} != {Mark.ABSENT, Mark.UNKEYED}):
                marker.write(mark)
        except StoreError as error:
            if self.problem != str(error):
                logger.warning("what the store holds cannot be told to its marker: %s", error)
            self.problem = str(error)
        else:
            self.problem = ""


def _delete_files(connection: Connection, tenant: TenantId) -> None:
    """Delete a tenant's files; rows of those in object storage go after their objects, and of one that is being written
    once that has ended for certain.
    """
    own = _files.c.tenant == tenant
    connection.execute(delete(_files).where(own & (_files.c.place == "database")))
    expires = case((_files.c.status == "writing", _files.c.expires), else_=0.0)
    connection.execute(update(_files).where(own).values(status="deleted", expires=expires))


def _made_anew(found: Tenancy, known: Tenancy) -> bool:
    """Whether ``found`` is a new, empty store, and what was known before is not in it."""
    empty = not found.tenants and found.access is StoreAccess.UNSAID
    return found.store != known.store and empty and bool(known.tenants or known.access)


def _state(connection: Connection) -> tuple[str, int, StoreAccess]:
    row = connection.execute(select(_tenancy.c.store, _tenancy.c.revision, _tenancy.c.access)).first()
    if row is None:
        raise StoreError("unreadable", "the store does not say which it is")
    return row[0], row[1], StoreAccess(row[2]) if row[2] in set(StoreAccess) else StoreAccess.KEYED


def _say(connection: Connection, access: StoreAccess) -> None:
    connection.execute(update(_tenancy).values(access=access))


def _all(connection: Connection, store: str, revision: int, access: StoreAccess) -> Tenancy:
    keys = tuple(_key_records(connection))
    # A replica of a version that knows no ``access`` may have made them.
    access = StoreAccess.KEYED if keys else access
    return Tenancy(store, revision, tuple(_tenant_records(connection)), keys, access)


def _tenant_records(connection: Connection) -> list[TenantRecord]:
    rows = connection.execute(select(_tenants).order_by(_tenants.c.name)).mappings()
    return [_record(row, TenantRecord) for row in rows]


def _key_records(connection: Connection, tenant: TenantId | None = None) -> list[KeyRecord]:
    query = select(_keys).order_by(_keys.c.created, _keys.c.id)
    query = query if tenant is None else query.where(_keys.c.tenant == tenant)
    return [_record(row, KeyRecord) for row in connection.execute(query).mappings()]


def _tenant(connection: Connection, name: TenantId) -> TenantRecord:
    row = connection.execute(select(_tenants).where(_tenants.c.name == name)).mappings().first()
    if row is None:
        raise TenantNotFoundError(f"there is no tenant {name}")
    return _record(row, TenantRecord)


def _add(connection: Connection, key: KeyRecord) -> None:
    _tenant(connection, key.tenant)
    known = _key_records(connection, key.tenant)
    ended = [old.id for old in known if old.state(key.created) is not KeyState.ACTIVE]
    surplus = len(known) + 1 - MAX_KEYS
    if surplus > len(ended):
        raise TenantConflictError(f"tenant {key.tenant} has {MAX_KEYS} keys that are active, and can have no more")
    if surplus > 0:
        connection.execute(delete(_keys).where(_keys.c.id.in_(ended[:surplus])))
    connection.execute(insert(_keys), _row(key))
    _say(connection, StoreAccess.KEYED)


def _row(record: object) -> dict[str, Any]:
    return cast("dict[str, Any]", msgspec.to_builtins(record))


def _record(row: RowMapping, kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(row), kind)
    except msgspec.ValidationError as error:
        raise StoreError("unreadable", f"what was stored cannot be read by this program: {error}") from error
