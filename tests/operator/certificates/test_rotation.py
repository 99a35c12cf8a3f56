"""When certificates and authorities are renewed, by a clock that the test moves."""

from __future__ import annotations

import datetime as dt
import itertools
from dataclasses import dataclass, field

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cachefleet_operator.certificates.certificate import Certificate, Pair
from cachefleet_operator.certificates.rotation import (
    SKEW,
    Authorities,
    Lifetimes,
    Step,
    end_of,
    prepared,
    promoted,
    reason_to_issue,
    retired,
    step,
)

DAY = dt.timedelta(days=1)
MINUTE = dt.timedelta(minutes=1)
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
LIFETIMES = Lifetimes(authority=1825 * DAY, serving=90 * DAY, spread=dt.timedelta(hours=1))
NAMES = frozenset({"a"})


def authority(key: str, made: dt.datetime = START) -> Pair:
    return Pair(Certificate(key, key, made - SKEW, made + LIFETIMES.authority), key.encode(), b"secret")


def serving(signed_by: Pair, made: dt.datetime) -> Certificate:
    ends = end_of(made, LIFETIMES.serving, signed_by.certificate)
    return Certificate("own", signed_by.certificate.key, made - SKEW, ends, NAMES)


def test_a_young_authority_stays() -> None:
    assert step(Authorities(authority("1")), START + 1450 * DAY, LIFETIMES, since=START) is Step.KEEP


def test_the_next_one_is_made_with_a_fifth_of_its_life_left() -> None:
    assert step(Authorities(authority("1")), START + 1461 * DAY, LIFETIMES, since=START) is Step.PREPARE


def test_the_next_one_signs_when_all_have_had_it_for_a_while() -> None:
    made = START + 1461 * DAY
    both = prepared(Authorities(authority("1")), authority("2", made))
    assert both.bundle == b"12"
    assert step(both, made + 59 * MINUTE, LIFETIMES, since=START) is Step.KEEP
    assert step(both, made + 60 * MINUTE, LIFETIMES, since=START) is Step.PROMOTE


def test_an_operator_that_was_away_gives_it_to_all_first() -> None:
    made, back = START + 1461 * DAY, START + 1500 * DAY
    both = prepared(Authorities(authority("1")), authority("2", made))
    assert step(both, back + 59 * MINUTE, LIFETIMES, since=back) is Step.KEEP
    assert step(both, back + 60 * MINUTE, LIFETIMES, since=back) is Step.PROMOTE


def test_nobody_waits_for_an_authority_that_has_expired() -> None:
    late = START + 1825 * DAY
    both = prepared(Authorities(authority("1")), authority("2", late))
    assert step(both, late, LIFETIMES, since=late) is Step.PROMOTE


def test_one_that_signed_is_trusted_without_its_key_until_it_has_expired() -> None:
    after = promoted(prepared(Authorities(authority("1")), authority("2", START + 1461 * DAY)))
    assert (after.bundle, after.previous[0].key_pem) == (b"21", b"")
    assert step(after, START + 1824 * DAY, LIFETIMES, since=START) is Step.KEEP
    assert step(after, START + 1825 * DAY, LIFETIMES, since=START) is Step.RETIRE
    assert retired(after, START + 1825 * DAY).bundle == b"2"


def test_why_a_certificate_is_issued_anew() -> None:
    first, second = authority("1"), authority("2")
    fresh = serving(first, START)

    def reason(found: Certificate | None, signing: Pair = first, *, after: dt.timedelta = DAY) -> str:
        return reason_to_issue(found, NAMES, signing.certificate, START + after)

    assert reason(fresh) == ""
    assert reason(None) == "there is none that can be read"
    assert reason(fresh, second) == "another authority signs now"
    assert reason_to_issue(fresh, NAMES | {"b"}, first.certificate, START) == "its names are others"
    assert reason(fresh, after=59 * DAY) == ""
    assert reason(fresh, after=60 * DAY) == "it expires"


def test_what_was_made_by_a_clock_that_went_ahead_is_made_anew() -> None:
    ahead = authority("1", START + 365 * DAY)
    assert reason_to_issue(serving(ahead, START + 365 * DAY), NAMES, ahead.certificate, START) == "it is not valid yet"
    assert step(Authorities(ahead), START, LIFETIMES, since=START) is Step.PREPARE
    both = prepared(Authorities(ahead), authority("2"))
    assert step(both, START, LIFETIMES, since=START) is Step.PROMOTE
    assert step(promoted(both), START, LIFETIMES, since=START) is Step.KEEP


def test_a_next_authority_from_the_future_signs_nothing() -> None:
    ahead = prepared(Authorities(authority("1")), authority("2", START + 2000 * DAY))
    assert step(ahead, START, LIFETIMES, since=START) is Step.KEEP
    late = START + 1461 * DAY
    assert step(ahead, late, LIFETIMES, since=START) is Step.PREPARE
    assert step(prepared(ahead, authority("3", late)), late, LIFETIMES, since=late) is Step.KEEP


def test_clocks_may_differ_by_less_than_an_hour() -> None:
    made = authority("1", START + 59 * MINUTE)
    assert reason_to_issue(serving(made, START + 59 * MINUTE), NAMES, made.certificate, START) == ""
    assert step(Authorities(made), START, LIFETIMES, since=START) is Step.KEEP


def test_no_certificate_outlives_its_authority() -> None:
    late = START + 1800 * DAY
    assert serving(authority("1"), late).ends == START + 1825 * DAY


@dataclass(slots=True)
class Holder:
    """A server and client: its Secret as the operator wrote it, and as its volume shows it, some time later."""

    written: list[tuple[dt.datetime, Certificate, frozenset[str]]] = field(default_factory=list)

    def shown(self, now: dt.datetime, delay: dt.timedelta) -> tuple[Certificate, frozenset[str]]:
        seen = [version for version in self.written if version[0] + delay <= now] or self.written[:1]
        return seen[-1][1:]


class World:
    """An operator with a control plane and two pools, whose Secrets are written and shown with delays."""

    def __init__(self) -> None:
        self.names = map(str, itertools.count(2))
        self.now = self.since = START
        self.authorities = Authorities(authority("1"))
        self.holders = [Holder(), Holder(), Holder()]
        for holder in self.holders:
            self.write(holder)

    def lead(self) -> None:
        """One look at the authority, as at each resync."""
        while (due := step(self.authorities, self.now, LIFETIMES, since=self.since)) is not Step.KEEP:
            if due is Step.PREPARE:
                self.authorities = prepared(self.authorities, authority(next(self.names), self.now))
                self.since = self.now
            elif due is Step.PROMOTE:
                self.authorities = promoted(self.authorities)
            else:
                self.authorities = retired(self.authorities, self.now)

    def write(self, holder: Holder) -> None:
        """One pass over a pool."""
        current = self.authorities.current
        found = holder.written[-1][1] if holder.written else None
        if reason_to_issue(found, NAMES, current.certificate, self.now) or found is None:
            found = serving(current, self.now)
        trusted = frozenset(pair.certificate.key for pair in self.authorities.trusted)
        holder.written.append((self.now, found, trusted))

    def check(self, delays: list[dt.timedelta]) -> None:
        """Everybody accepts everybody."""
        shown = [holder.shown(self.now, delay) for holder, delay in zip(self.holders, delays, strict=True)]
        for (certificate, _), (_, trusted) in itertools.product(shown, shown):
            assert certificate.begins <= self.now < certificate.ends
            assert certificate.issuer in trusted
        alive = {pair.certificate.key: pair.certificate for pair in self.authorities.trusted}
        assert all(self.now < alive[certificate.issuer].ends for certificate, _ in shown)


MINUTES = st.integers(0, 20).map(lambda count: count * MINUTE)
TURNS = st.tuples(
    st.sampled_from([5 * MINUTE, 20 * MINUTE, 90 * MINUTE, DAY, 10 * DAY, 25 * DAY]),  # nothing is looked at until then
    st.sampled_from(["goes on", "another leads", "dies"]),  # the last: after its look, before any Secret is written
    st.lists(MINUTES, min_size=3, max_size=3),  # when each Secret is written after the operator's look
    st.lists(MINUTES, min_size=3, max_size=3),  # how late each volume shows it
)


@settings(
    max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)  # shrinking takes minutes
@given(st.lists(TURNS, min_size=8, max_size=25), st.integers(1400, 1465))
def test_at_no_time_does_a_server_present_what_a_client_does_not_trust(
    turns: list[tuple[dt.timedelta, str, list[dt.timedelta], list[dt.timedelta]]], begin: int
) -> None:
    world, died = World(), False
    for days in range(0, begin, 25):  # years in which nothing goes wrong
        world.now = START + days * DAY
        world.lead()
        for holder in world.holders:
            world.write(holder)
    for away, leader, writes, delays in turns:
        world.now += 5 * MINUTE if died else away
        if died or leader == "another leads":
            world.since = world.now
        world.lead()
        world.check(delays)
        if died := leader == "dies":
            world.now += min(away, DAY)
            continue
        began = world.now
        for at, holder in sorted(zip(writes, world.holders, strict=True), key=lambda pair: pair[0]):
            world.now = began + at
            world.write(holder)
            world.check(delays)
        for later in range(0, 45, 5):  # all volumes follow
            world.now = began + max(writes) + later * MINUTE
            world.check(delays)
