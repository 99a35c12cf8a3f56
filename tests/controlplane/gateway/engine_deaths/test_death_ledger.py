"""Who is suspected of the ends of engines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.engine_deaths.death_ledger import (
    MAX_LOSSES,
    REMEMBER_SECONDS,
    SETTLE_SECONDS,
    DeathLedger,
    FatalVerdict,
    judged,
)

A, B, C, D = (bytes([number]) for number in range(4))


def died(ledger: DeathLedger, worker: str, at: float, waiting: list[bytes], producing: tuple[bytes, ...] = ()) -> None:
    """An engine ends at ``at``, with these in flight."""
    for digest in waiting:
        ledger.lost(worker, digest, began=at - 1, produced=False, now=at)
    for digest in producing:
        ledger.lost(worker, digest, began=at - 1, produced=True, now=at)


def verdicts(ledger: DeathLedger, *digests: bytes, now: float = 3) -> list[FatalVerdict]:
    return [ledger.verdict(digest, now) for digest in digests]


def test_one_death_condemns_nobody() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A, B], (C,))
    assert verdicts(ledger, A, B, C) == [FatalVerdict.FREE] * 3


def test_what_was_in_flight_twice_is_fatal_and_its_neighbours_are_free() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A, B])
    died(ledger, "two", 2, [A, C])
    assert verdicts(ledger, A, B, C) == [FatalVerdict.FATAL, FatalVerdict.FREE, FatalVerdict.FREE]
    assert ledger.workers(A) == ("one", "two")


def test_a_long_answer_that_was_resumed_on_the_second_engine_is_no_suspect() -> None:
    """It had produced tokens at both, and what ended the engines had not."""
    ledger = DeathLedger()
    died(ledger, "one", 1, [A], (B, C))
    died(ledger, "two", 2, [A], (B, C))
    assert verdicts(ledger, A, B, C) == [FatalVerdict.FATAL, FatalVerdict.FREE, FatalVerdict.FREE]


def test_what_ends_engines_after_its_first_token_is_found_where_all_have_one() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [], (A, B))
    died(ledger, "two", 2, [], (A,))
    assert verdicts(ledger, A, B) == [FatalVerdict.FATAL, FatalVerdict.FREE]


def test_who_waited_at_both_is_in_doubt_until_a_third_death_or_an_answer_tells() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A, B])
    died(ledger, "two", 2, [A, B])
    assert verdicts(ledger, A, B) == [FatalVerdict.DOUBTFUL] * 2
    answered = DeathLedger()
    for one in (ledger, answered):
        died(one, "one", 1, [A, B])
        died(one, "two", 2, [A, B])
    answered.answered(B, whole=False, now=3)
    assert verdicts(answered, A, B) == [FatalVerdict.FATAL, FatalVerdict.FREE]
    died(ledger, "three", 3, [A])
    assert verdicts(ledger, A, B, now=4) == [FatalVerdict.FATAL, FatalVerdict.FREE]


def test_a_popular_body_that_is_answered_meanwhile_is_cleared() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A])
    ledger.answered(A, whole=False, now=1.5)
    died(ledger, "two", 2, [A])
    assert verdicts(ledger, A) == [FatalVerdict.FREE]


def test_a_first_token_does_not_clear_what_ends_engines_later() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [], (A,))
    ledger.answered(A, whole=False, now=1.5)
    died(ledger, "two", 2, [], (A,))
    assert verdicts(ledger, A) == [FatalVerdict.FATAL]


def test_nobody_is_condemned_before_all_that_was_lost_is_noted() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A, B])
    ledger.lost("two", A, began=1, produced=False, now=2)
    assert (ledger.verdict(A, 2), ledger.unsettled(2)) == (FatalVerdict.DOUBTFUL, SETTLE_SECONDS)
    ledger.lost("two", B, began=1, produced=False, now=2.1)
    assert verdicts(ledger, A, B) == [FatalVerdict.DOUBTFUL] * 2


def test_losses_of_one_end_are_one_death_and_a_restarted_engine_dies_anew() -> None:
    ledger = DeathLedger()
    assert ledger.lost("one", A, began=0, produced=False, now=1)
    assert not ledger.lost("one", A, began=0.5, produced=False, now=1.2)
    assert verdicts(ledger, A) == [FatalVerdict.FREE]
    assert ledger.lost("one", A, began=5, produced=False, now=6)
    assert verdicts(ledger, A, now=7) == [FatalVerdict.FATAL]


def test_all_is_forgotten_after_a_while() -> None:
    ledger = DeathLedger()
    died(ledger, "one", 1, [A])
    died(ledger, "two", 2, [A])
    assert verdicts(ledger, A) == [FatalVerdict.FATAL]
    assert ledger.refused(4) == {A: REMEMBER_SECONDS - 1}
    assert verdicts(ledger, A, now=3 + REMEMBER_SECONDS) == [FatalVerdict.FREE]
    assert ledger.empty


def test_what_is_remembered_is_bounded() -> None:
    ledger = DeathLedger()
    many = [number.to_bytes(4, "big") for number in range(2 * MAX_LOSSES)]
    died(ledger, "one", 1, many)
    died(ledger, "two", 2, many)
    assert verdicts(ledger, many[0], many[-1]) == [FatalVerdict.DOUBTFUL, FatalVerdict.FREE]


deaths = st.lists(st.frozensets(st.sampled_from([A, B, C, D])), max_size=6)


@given(deaths)
def test_nobody_is_judged_by_one_death(given: list[frozenset[bytes]]) -> None:
    fatal, doubtful = judged(given)
    assert not fatal & doubtful
    for digest in fatal | doubtful:
        assert sum(digest in suspects for suspects in given) >= 2


@given(deaths, st.integers(2, 4))
def test_who_alone_was_there_each_time_is_found_whatever_else_died(given: list[frozenset[bytes]], times: int) -> None:
    culprit = b"culprit"
    fatal, _ = judged([*given, *([frozenset({culprit})] * times)])
    assert culprit in fatal
