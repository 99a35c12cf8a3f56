"""Judgements in SQL: unions of what replicas saw, changes of size, and what is too old."""

import time

import pytest

from cachefleet_controlplane.judgements.judged_minutes import HourPart
from cachefleet_controlplane.judgements.judgement_repository import (
    COMMIT_SECONDS,
    HOUR_SECONDS,
    KEPT_HOURS,
    MOST_CHANGES,
    Judged,
    KeptChange,
    SqlJudgements,
)
from cachefleet_controlplane.store.database import Database
from cachefleet_controlplane.store.schema.hour_ages import HOURS_SEEN

ACME = Judged("contract", "default/demo", "acme")
OTHER = Judged("contract", "default/demo", "other")
FIT = Judged("desired", "default/demo", "")


@pytest.fixture
def store(database: Database) -> SqlJudgements:
    store = SqlJudgements(database)
    store.open()
    return store


def test_what_several_replicas_write_of_an_hour_is_their_union_and_again_is_once(store: SqlJudgements) -> None:
    first, second = HourPart(9, "", 0b0111), HourPart(9, "", 0b1100)
    evicted = [HourPart(9, "evicted", 0b0001, 5), HourPart(9, "evicted", 0b0010, 3)]
    for part in (first, second, first, *evicted):
        store.exchange([(ACME, part), (FIT, part)], (), since=0)
    found = store.exchange((), (), since=9).parts
    both = [HourPart(9, "", 0b1111), HourPart(9, "evicted", 0b0011, 5)]
    assert sorted((part for named, part in found if named == ACME), key=lambda part: part.reason) == both
    assert sorted((part for named, part in found if named == FIT), key=lambda part: part.reason) == both


def test_all_minutes_of_an_hour_are_kept(store: SqlJudgements) -> None:
    every = HourPart(9, "", (1 << 60) - 1)
    assert store.exchange([(ACME, every)], (), since=9).parts == [(ACME, every)]


def test_all_is_read_once_and_then_what_is_new(store: SqlJudgements) -> None:
    old, new = HourPart(3, "", 1), HourPart(9, "", 1)
    store.exchange([(one, part) for one in (ACME, OTHER) for part in (old, new)], (), since=9)
    assert sorted(store.exchange((), [OTHER], since=9).parts, key=str) == sorted(
        [(ACME, new), (OTHER, old), (OTHER, new)], key=str
    )


def test_changes_are_replaced_dropped_and_read_in_order(store: SqlJudgements) -> None:
    store.keep([KeptChange("default/demo", at, {"phase": "filling"}) for at in (2.5, 1.5)])
    store.keep([KeptChange("default/demo", 2.5, {"phase": "judged"}), KeptChange("default/other", 9.0, {})])
    assert store.changes("default/demo") == [
        KeptChange("default/demo", 1.5, {"phase": "filling"}),
        KeptChange("default/demo", 2.5, {"phase": "judged"}),
    ]
    for late in ({"phase": "measuring"}, None):
        store.keep([KeptChange("default/demo", 2.5, late)])
        assert store.changes("default/demo")[-1].change == {"phase": "judged"}, "another replica has judged it"
    store.keep([KeptChange("default/demo", 1.5, None)])
    assert [one.at for one in store.changes("default/demo")] == [2.5]
    store.keep([KeptChange("default/demo", 10.0 + at, {}) for at in range(MOST_CHANGES)])
    assert store.changes("default/demo")[0].at == 10.0


def test_what_was_written_since_the_last_exchange_is_read_whatever_its_hour(store: SqlJudgements) -> None:
    known, late = HourPart(2, "", 1), HourPart(3, "", 1)
    read_at = store.exchange([(ACME, known)], (), since=9).at
    assert (ACME, late) in store.exchange([(ACME, late)], (), since=9, read_at=read_at).parts
    assert store.exchange((), (), since=9, read_at=read_at + COMMIT_SECONDS + 3600).parts == []
    assert abs(store.exchange((), (), since=9).at - time.time()) < 3600


def hours(newest: int, count: int = HOURS_SEEN) -> list[tuple[Judged, HourPart]]:
    return [(ACME, HourPart(newest - more, "", 1)) for more in range(count)]


def test_what_is_older_than_a_month_is_deleted(store: SqlJudgements) -> None:
    hour = 400_000
    kept, gone = HourPart(hour - KEPT_HOURS, "", 1), HourPart(hour - KEPT_HOURS - 1, "", 1)
    store.exchange([(ACME, kept), (ACME, gone), *hours(hour)], (), since=hour)
    store.keep([KeptChange("p", float((hour - KEPT_HOURS) * HOUR_SECONDS - more), {}) for more in (0, 1)])
    assert store.prune(now=hour * HOUR_SECONDS) == 2
    left = store.exchange((), [ACME], since=hour).parts
    assert (ACME, kept) in left
    assert (ACME, gone) not in left
    assert len(store.changes("p")) == 1


def test_a_clock_that_is_far_ahead_deletes_nothing_of_what_all_wrote(store: SqlJudgements) -> None:
    now = int(time.time()) // HOUR_SECONDS
    ahead = now + 2 * KEPT_HOURS
    store.exchange([*hours(now, count=48), *hours(ahead, count=HOURS_SEEN - 1)], (), since=now)
    assert store.prune(now=ahead * HOUR_SECONDS) == 0
    assert len(store.exchange((), [ACME], since=now).parts) == 48 + HOURS_SEEN - 1
