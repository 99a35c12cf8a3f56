"""Heads of conversations in real SQLite and PostgreSQL: compare-and-swap, branches, expiry, and what is forgotten."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from threading import Barrier
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from sqlalchemy import CursorResult, text

from cachefleet_controlplane.gateway.converse.checkpoint import Checkpoint, Owner, Status, checkpoint
from cachefleet_controlplane.gateway.converse.checkpoint_repository import LINEAGE, SqlContinuations
from cachefleet_controlplane.gateway.converse.records import Certificate, FinishedTurn, SealedResponse
from cachefleet_controlplane.gateway.converse.sessions import TABLE, ConversationState, Event, after
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.continuation_tables import CertificateRow, CheckpointRow, ResponseRow
from cachefleet_controlplane.store.sql_tenants import SqlTenants
from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_core.tenancy import TenantId
from tests.controlplane.gateway.converse.made import HERE, fresh, lineage

ACME = Owner(TenantId("acme"), "default/m")
OTHER = Owner(TenantId("umbrella"), "default/m")
PROMPT = list(range(1, 12))


@pytest.fixture
def store(database: Database) -> SqlContinuations:
    store = SqlContinuations(database)
    store.open()
    return store


def turn(
    number: int,
    *,
    expected: str | None,
    owner: Owner = ACME,
    name: str = "n1",
    state: ConversationState = ConversationState.ACTIVE,
    **line: Any,
) -> FinishedTurn:
    made = checkpoint(lineage(number, parent=expected, **line), fresh(PROMPT, 9), HERE, max_keys=100)
    return FinishedTurn(owner=owner, name=name, expected=expected, state=state, checkpoint=made)


def sealed(name: str, *, tenant: TenantId = ACME.tenant, expires: float = 200.0) -> SealedResponse:
    return SealedResponse(tenant=tenant, id=name, model="default/m", sealed=b"x", created=1.0, expires=expires)


def test_rows_have_exactly_the_fields_of_records() -> None:
    for row, record in ((CheckpointRow, Checkpoint), (ResponseRow, SealedResponse), (CertificateRow, Certificate)):
        assert set(row.model_fields) - {"handle"} == {field.name for field in fields(record)}


def test_a1_a_checkpoint_comes_back_as_it_was_left(store: SqlContinuations) -> None:
    made = turn(1, expected=None)
    assert store.commit(made)
    head = store.head(ACME, "n1")
    assert head is not None
    assert (head.checkpoint, head.seq, head.state) == (made.checkpoint, 1, ConversationState.ACTIVE)


def test_a4_no_ids_are_in_the_database(store: SqlContinuations, database: Database) -> None:
    ids = list(range(70_000, 70_600))
    made = checkpoint(lineage(), fresh(ids, 512), HERE, max_keys=1000)
    assert store.commit(
        FinishedTurn(owner=ACME, name="n", expected=None, state=ConversationState.ACTIVE, checkpoint=made)
    )
    with database.transaction() as connection:
        row = connection.execute(text("SELECT * FROM checkpoints")).mappings().one()
    assert b"70100" not in repr(dict(row)).encode()
    assert (70_100).to_bytes(4, "little") not in row["keys"]
    assert len(row["keys"]) == 8 * (512 // 4)


def test_conversations_of_others_are_not_found(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None, response="r1"))
    for owner in (OTHER, Owner(ACME.tenant, "other/m")):
        assert store.head(owner, "n1") is None
        assert store.branch(owner, "r1") is None
    assert store.branch(ACME, "r1") is not None


def test_responses_of_others_are_neither_found_nor_forgotten(store: SqlContinuations) -> None:
    assert store.commit(replace(turn(1, expected=None), response=sealed("r1")))
    assert store.response(OTHER.tenant, "r1", now=1.0) is None
    assert not store.forget(OTHER.tenant, "r1", now=1.0)
    assert store.commit(
        replace(
            turn(1, expected=None, owner=OTHER, conversation="c2", id="p2"), response=sealed("r1", tenant=OTHER.tenant)
        )
    )
    assert store.forget(OTHER.tenant, "r1", now=1.0)
    assert store.response(ACME.tenant, "r1", now=1.0) == sealed("r1")


def test_a20_concurrent_turns_on_one_head_commit_once(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None))
    both = Barrier(2)

    def commit(number: int) -> bool:
        both.wait(30)
        made = turn(2, expected="p1")
        assert made.checkpoint is not None
        return store.commit(replace(made, checkpoint=replace(made.checkpoint, id=f"x{number}")))

    with ThreadPoolExecutor(2) as threads:
        won = list(threads.map(commit, (1, 2)))
    assert sorted(won) == [False, True]
    head = store.head(ACME, "n1")
    assert head is not None
    assert head.checkpoint is not None
    assert (head.seq, head.checkpoint.id) == (2, f"x{won.index(True) + 1}")


def test_a20_concurrent_first_turns_begin_one_conversation(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None))
    assert not store.commit(turn(1, expected=None, conversation="c2", id="p9"))
    head = store.head(ACME, "n1")
    assert head is not None
    assert head.id == "c1"


def test_a20_a_conversation_begins_where_inserts_tell_no_count(
    store: SqlContinuations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As psycopg's do not."""
    monkeypatch.setattr(CursorResult, "rowcount", property(lambda _: -1))
    assert store.commit(turn(1, expected=None))
    assert not store.commit(turn(1, expected=None, conversation="c2", id="p9"))


def test_a20_who_comes_too_late_leaves_its_response_alone(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None))
    assert store.commit(turn(2, expected="p1"))
    late = replace(turn(2, expected="p1", id="late", response="r9"), response=sealed("r9"))
    assert not store.commit(late)
    assert store.branch(ACME, "r9") is None
    assert store.response(ACME.tenant, "r9", now=150.0) == sealed("r9")


def test_a20_a_turn_within_a_tool_loop_gives_way_to_its_successor(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None, response="r1"))
    assert store.commit(turn(2, expected="p1", response="r2", status=Status.EPHEMERAL))
    assert store.branch(ACME, "r2") is not None
    assert store.commit(turn(3, expected="p2", response="r3"))
    assert [name for name in ("r1", "r2", "r3") if store.branch(ACME, name)] == ["r1", "r3"]


def test_lineage_is_bounded(store: SqlContinuations, database: Database) -> None:
    for number in range(1, LINEAGE + 5):
        assert store.commit(turn(number, expected=f"p{number - 1}" if number > 1 else None))
    with database.transaction() as connection:
        assert connection.execute(text("SELECT count(*) FROM checkpoints")).scalar() == LINEAGE


def test_a18_an_expired_conversation_gives_its_name_up(store: SqlContinuations) -> None:
    assert store.commit(turn(1, expected=None))
    head = store.head(ACME, "n1")
    assert head is not None
    assert (head.at(199.0), head.at(200.0)) == (ConversationState.ACTIVE, ConversationState.EXPIRED)
    assert (head.preferred(199.0), head.preferred(200.0)) == (HERE.worker, "")
    assert store.commit(turn(1, expected=None, conversation="c2", id="p9", created=200.0, expires=300.0))
    again = store.head(ACME, "n1")
    assert again is not None
    assert again.id == "c2"


@pytest.mark.parametrize(("state", "worker"), [("active", HERE.worker), ("paused", HERE.worker), ("completed", "")])
def test_a18_only_who_may_come_back_is_waited_for(store: SqlContinuations, state: str, worker: str) -> None:
    assert store.commit(turn(1, expected=None, state=ConversationState(state)))
    head = store.head(ACME, "n1")
    assert head is not None
    assert head.preferred(150.0) == worker


def test_a18_the_states_are_a_table() -> None:
    for state, row in TABLE.items():
        for event in Event:
            if event in row:
                assert after(state, event) is row[event]
            else:
                with pytest.raises(ValueError, match=event):
                    after(state, event)


def test_what_is_too_old_or_too_much_is_pruned(store: SqlContinuations) -> None:
    for number in range(5):
        line: dict[str, Any] = {"conversation": f"c{number}", "id": f"q{number}", "expires": 200.0 + number}
        made = turn(1, expected=None, name=f"n{number}", **line)
        assert store.commit(replace(made, response=sealed(f"r{number}", expires=200.0 + number)))
    while store.prune(now=200.0, max_responses=2, max_conversations=3):
        pass
    assert [number for number in range(5) if store.head(ACME, f"n{number}")] == [2, 3, 4]
    assert [number for number in range(5) if store.response(ACME.tenant, f"r{number}", now=1.0)] == [3, 4]


def test_a_tenant_that_is_deleted_leaves_no_conversation(store: SqlContinuations, database: Database) -> None:
    """One of the same name, made later, finds nothing of it."""
    tenants = SqlTenants(database)
    for owner in (ACME, OTHER):
        tenants.create(TenantRecord(name=owner.tenant))
        line: dict[str, Any] = {"conversation": f"c-{owner.tenant}", "id": f"p-{owner.tenant}"}
        made = turn(1, expected=None, owner=owner, **line)
        assert store.commit(replace(made, response=sealed("r1", tenant=owner.tenant)))
    tenants.delete(ACME.tenant)
    assert (store.head(ACME, "n1"), store.response(ACME.tenant, "r1", now=1.0)) == (None, None)
    assert store.head(OTHER, "n1") is not None
    assert store.response(OTHER.tenant, "r1", now=1.0) is not None


def test_certificates_replace_each_other(store: SqlContinuations) -> None:
    first = Certificate(
        profile="p", contract="c", model="m", certified=True, reason="", at=1.5, version=1, counts={"chats": 3}
    )
    store.certify(first)
    store.certify(replace(first, certified=False, reason="x"))
    store.certify(replace(first, profile="q"))
    assert store.certificates() == [replace(first, certified=False, reason="x"), replace(first, profile="q")]


class Heads(RuleBasedStateMachine):
    """Turns that begin, end, are left and come late, against what a dict says of the same."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(f"sqlite:///{self.folder.name}/c.db", timeout_seconds=10)
        self.store = SqlContinuations(self.database)
        self.store.open()
        self.now = 0.0
        self.made = 0
        self.open: list[tuple[str, FinishedTurn]] = []
        """Turns under way: the conversation's name, and what each would leave."""
        self.heads: dict[str, tuple[str, str, int, float]] = {}
        """Of each name: conversation, head, number, and when it expires."""

    def teardown(self) -> None:
        self.database.close()
        self.folder.cleanup()

    @rule(name=st.sampled_from(["a", "b"]), status=st.sampled_from(Status))
    def begin(self, name: str, status: Status) -> None:
        found = self.store.head(ACME, name)
        living = found if found is not None and found.at(self.now) is not ConversationState.EXPIRED else None
        self.made += 1
        conversation = living.id if living else f"c{self.made}"
        expected = living.checkpoint.id if living and living.checkpoint else None
        line = lineage(
            1 if living is None else living.seq + 1,
            conversation=conversation,
            parent=expected,
            id=f"k{self.made}",
            status=status,
            created=self.now,
            expires=self.now + 10,
        )
        made = checkpoint(line, fresh(PROMPT, 9), HERE, max_keys=9)
        self.open.append(
            (
                name,
                FinishedTurn(owner=ACME, name=name, expected=expected, state=ConversationState.ACTIVE, checkpoint=made),
            )
        )

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if not self.open:
            return
        name, turn = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        made = turn.checkpoint
        assert made is not None
        head = self.heads.get(name)
        if turn.expected is None:
            free = head is None or head[3] <= made.created
        else:
            free = head is not None and head[:2] == (made.conversation, turn.expected)
        assert self.store.commit(turn) is free
        if free:
            self.heads[name] = made.conversation, made.id, made.seq, made.expires

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A client goes: nothing advances."""
        if self.open:
            self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))

    @rule(seconds=st.floats(0, 12))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def heads_are_as_they_should_be(self) -> None:
        for name in ("a", "b"):
            found, wanted = self.store.head(ACME, name), self.heads.get(name)
            assert (found is None) == (wanted is None)
            if found is not None and wanted is not None:
                assert found.checkpoint is not None
                assert (found.id, found.checkpoint.id, found.seq, found.expires) == wanted
                assert found.checkpoint.seq == found.seq


TestA20Heads = Heads.TestCase
TestA20Heads.settings = settings(max_examples=settings().max_examples // 3, stateful_step_count=30, deadline=None)
