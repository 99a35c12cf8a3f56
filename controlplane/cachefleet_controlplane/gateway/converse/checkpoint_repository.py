"""SQL repository of conversations, checkpoints, stored responses and certificates.

A turn is committed in one transaction (A20): the head moves by compare-and-swap, together with its checkpoint.
Where the head has moved before, only the turn's response is kept, which has an id of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import RowMapping

from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Owner, Status
from cachefleet_controlplane.gateway.converse.records import Certificate, FinishedTurn, SealedResponse
from cachefleet_controlplane.gateway.converse.sessions import ConversationState, Head
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.continuation_tables import (
    CertificateRow,
    CheckpointRow,
    ConversationRow,
    ResponseRow,
)
from cachefleet_controlplane.store.store_errors import StoreError
from cachefleet_core.continuation import Fingerprints
from cachefleet_core.tenancy import TenantId

T = TypeVar("T")

PRUNE_ROWS: Final = 1000
LINEAGE: Final = 16
"""Checkpoints of one conversation that are kept, the head among them."""

_conversations = cast("Table", ConversationRow.__table__)  # type: ignore[attr-defined]  # SQLModel makes it
_checkpoints = cast("Table", CheckpointRow.__table__)  # type: ignore[attr-defined]
_responses = cast("Table", ResponseRow.__table__)  # type: ignore[attr-defined]
_certificates = cast("Table", CertificateRow.__table__)  # type: ignore[attr-defined]


def pruning(
    responses: int, conversations: int, wall_clock: Callable[[], float] = time.time
) -> Callable[[SqlContinuations], int]:
    """Return what deletes some rows that have expired or are too many, and tells how many."""
    return lambda store: store.prune(now=wall_clock(), max_responses=responses, max_conversations=conversations)


class SqlContinuations:
    """Blocking calls on the database; every failure is a StoreError and has changed nothing."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open(self) -> None:
        """Open the database; to be called before all else, and again after a StoreError."""
        self._database.open()

    def head(self, owner: Owner, name: str) -> Head | None:
        """Return a conversation by its name's digest, expired or not; None for none."""
        with self._database.transaction() as connection:
            row = _conversation(connection, owner, name)
            return None if row is None else _head(connection, row, row["head"])

    def branch(self, owner: Owner, response: str) -> tuple[Head, Checkpoint] | None:
        """Return the checkpoint of a response's id, and the head of its conversation; None for none."""
        of_owner = (_conversations.c.tenant == owner.tenant) & (_conversations.c.model == owner.model)
        query = select(_checkpoints).join(_conversations, _conversations.c.id == _checkpoints.c.conversation)
        with self._database.transaction() as connection:
            named = connection.execute(query.where(of_owner & (_checkpoints.c.response == response))).mappings().first()
            if named is None:
                return None
            whole = select(_conversations).where(_conversations.c.id == named["conversation"])
            row = connection.execute(whole).mappings().one()
            return _head(connection, row, row["head"]), _checkpoint(named)

    def commit(self, turn: FinishedTurn) -> bool:
        """Keep a turn; False where its head was not the one expected, and then only the response is kept."""
        with self._database.transaction(write=True) as connection:
            if turn.response is not None:
                _keep(connection, turn.response)
            return turn.checkpoint is None or _advance(connection, turn, turn.checkpoint)

    def response(self, tenant: TenantId, response: str, *, now: float) -> SealedResponse | None:
        """Return a stored response; None where there is none, or it has expired at ``now`` (Unix seconds)."""
        named = (_responses.c.tenant == tenant) & (_responses.c.id == response)
        with self._database.transaction() as connection:
            row = connection.execute(select(_responses).where(named, _responses.c.expires > now)).mappings().first()
        return None if row is None else _record(dict(row), SealedResponse)

    def forget(self, tenant: TenantId, response: str, *, now: float) -> bool:
        """Delete a response; False where there was none that had not expired."""
        named = (_responses.c.tenant == tenant) & (_responses.c.id == response)
        with self._database.transaction(write=True) as connection:
            return connection.execute(delete(_responses).where(named, _responses.c.expires > now)).rowcount > 0

    def prune(self, *, now: float, max_responses: int, max_conversations: int) -> int:
        """Delete a batch of rows that have expired or are too many; return their number. Called until that is 0."""
        with self._database.transaction(write=True) as connection:
            return _prune(connection, _conversations, now, max_conversations) + _prune(
                connection, _responses, now, max_responses
            )

    def certificates(self) -> list[Certificate]:
        """Return all certificates, by model and profile."""
        query = select(_certificates).order_by(_certificates.c.model, _certificates.c.profile)
        with self._database.transaction() as connection:
            return [_record(dict(row), Certificate) for row in connection.execute(query).mappings()]

    def certify(self, certificate: Certificate) -> None:
        """Keep a certificate in place of an older one of its profile and contract."""
        same = _certificates.c.profile == certificate.profile, _certificates.c.contract == certificate.contract
        with self._database.transaction(write=True) as connection:
            connection.execute(delete(_certificates).where(*same))
            connection.execute(insert(_certificates), msgspec.to_builtins(certificate))


def _advance(connection: Connection, turn: FinishedTurn, checkpoint: Checkpoint) -> bool:
    moved = _begin(connection, turn, checkpoint) if turn.expected is None else _swap(connection, turn, checkpoint)
    if not moved:
        return False
    if turn.expected is not None:
        passed = (_checkpoints.c.id == turn.expected) & (_checkpoints.c.status == Status.EPHEMERAL)
        connection.execute(delete(_checkpoints).where(passed))
    connection.execute(insert(_checkpoints), _row(checkpoint))
    old = _checkpoints.c.seq <= checkpoint.seq - LINEAGE
    connection.execute(delete(_checkpoints).where(_checkpoints.c.conversation == checkpoint.conversation, old))
    return True


def _begin(connection: Connection, turn: FinishedTurn, checkpoint: Checkpoint) -> bool:
    """Insert a conversation; False where one of its name has not expired."""
    owner = turn.owner
    named = _named(owner, turn.name)
    over = select(_conversations.c.id).where(named, _conversations.c.expires <= checkpoint.created)
    connection.execute(delete(_checkpoints).where(_checkpoints.c.conversation.in_(over)))
    connection.execute(delete(_conversations).where(named, _conversations.c.expires <= checkpoint.created))
    made = _insert(connection, _conversations)
    row = {
        "id": checkpoint.conversation,
        "tenant": owner.tenant,
        "model": owner.model,
        "name": turn.name,
        "head": checkpoint.id,
        "seq": checkpoint.seq,
        "state": turn.state,
        "expires": checkpoint.expires,
    }
    # Not the row count: of an INSERT psycopg's is -1.
    begun = made.values(row).on_conflict_do_nothing().returning(_conversations.c.id)
    return connection.execute(begun).first() is not None


def _insert(connection: Connection, table: Table) -> Any:
    """The dialect's INSERT: both have ``on_conflict`` methods, with the same arguments."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def _swap(connection: Connection, turn: FinishedTurn, checkpoint: Checkpoint) -> bool:
    expected = (_conversations.c.id == checkpoint.conversation) & (_conversations.c.head == turn.expected)
    values = {"head": checkpoint.id, "seq": checkpoint.seq, "state": turn.state, "expires": checkpoint.expires}
    return connection.execute(update(_conversations).where(expected).values(values)).rowcount > 0


def _keep(connection: Connection, response: SealedResponse) -> None:
    """Insert or replace: a client may choose its response's id, so several may have the same."""
    row = {name: getattr(response, name) for name in SealedResponse.__dataclass_fields__}
    made = _insert(connection, _responses).values(row)
    connection.execute(made.on_conflict_do_update(index_elements=["tenant", "id"], set_=row))


def _prune(connection: Connection, table: Table, now: float, most: int) -> int:
    """Expired rows, and those next to expire where there are too many."""
    rows = connection.execute(select(func.count()).select_from(table)).scalar() or 0
    keys = list(table.primary_key.columns)
    oldest = select(*keys).order_by(table.c.expires)
    over = connection.execute(oldest.where(table.c.expires <= now).limit(PRUNE_ROWS)).all()
    surplus = min(PRUNE_ROWS, rows - most)
    found: Sequence[Any] = over if len(over) >= surplus else connection.execute(oldest.limit(surplus)).all()
    for row in found:
        if table is _conversations:
            connection.execute(delete(_checkpoints).where(_checkpoints.c.conversation == row[0]))
        connection.execute(delete(table).where(*(key == value for key, value in zip(keys, row, strict=True))))
    return len(found)


def _named(owner: Owner, name: str) -> Any:
    same = (_conversations.c.tenant == owner.tenant) & (_conversations.c.model == owner.model)
    return same & (_conversations.c.name == name)


def _conversation(connection: Connection, owner: Owner, name: str) -> RowMapping | None:
    return connection.execute(select(_conversations).where(_named(owner, name))).mappings().first()


def _head(connection: Connection, row: RowMapping, head: str) -> Head:
    found = connection.execute(select(_checkpoints).where(_checkpoints.c.id == head)).mappings().first()
    return Head(
        id=row["id"],
        owner=Owner(TenantId(row["tenant"]), row["model"]),
        name=row["name"],
        seq=row["seq"],
        state=ConversationState(row["state"]),
        expires=row["expires"],
        checkpoint=None if found is None else _checkpoint(found),
    )


def _row(checkpoint: Checkpoint) -> dict[str, Any]:
    row = {name: getattr(checkpoint, name) for name in Checkpoint.__dataclass_fields__}
    return row | {"fingerprints": msgspec.to_builtins(checkpoint.fingerprints)}


def _checkpoint(row: RowMapping) -> Checkpoint:
    fields = {name: row[name] for name in Checkpoint.__dataclass_fields__}
    fields["fingerprints"] = _record(fields["fingerprints"], Fingerprints)
    fields["status"] = Status(fields["status"])
    return Checkpoint(**fields)


def _record(fields: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise StoreError("unreadable", f"what was stored cannot be read by this program: {error}") from error
