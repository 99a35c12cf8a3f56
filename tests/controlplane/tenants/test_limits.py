"""What a tenant does at once and may use in a minute, held against a bucket that is computed the long way."""

from __future__ import annotations

from math import ceil, floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.store.tenant_records import TenantRecord, Totals
from cachefleet_controlplane.tenants.leases import MINUTE, Lease, OtherReplicas
from cachefleet_controlplane.tenants.limits import RETRY_SECONDS, Bucket, TenantLoad
from cachefleet_controlplane.tenants.rate_limit_headers import Room
from cachefleet_core.fleet_status.tenant_limits import PER_MINUTE, Limit
from cachefleet_core.tenancy import TenantId

ACME = TenantId("acme")
EVENTS = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 1000)), max_size=60)


def held_to(tenant: TenantRecord, now: float = 0.0) -> TenantLoad:
    load = TenantLoad()
    load.hold_to(tenant, now, OtherReplicas())
    return load


def bucket(limit: int, now: float = 0.0) -> Bucket:
    made = Bucket()
    made.hold_to(limit, now)
    return made


@given(EVENTS, st.integers(1, 3000))
def test_the_bucket_refills_as_time_goes_and_tells_when_there_is_room(
    events: list[tuple[float, int]], limit: int
) -> None:
    spent, level, now = bucket(limit, 1000.0), float(limit), 1000.0
    for pause, tokens in events:
        now += pause
        level = min(limit, level + pause * limit / MINUTE) - tokens
        spent.add(tokens, now)
        wait = spent.wait(now)
        after = level + wait * limit / MINUTE
        assert wait == 0 or level < 1
        assert after >= 1 - 0.01
        assert wait <= 1 or after - limit / MINUTE < 1 + 0.01, "a second less were too few"
        room = spent.room(now)
        assert room is not None
        assert abs(room.remaining - max(0, floor(level))) <= 1
        assert room.reset == pytest.approx((limit - level) * MINUTE / limit, abs=0.01)


@given(st.integers(1, 600), st.lists(st.floats(0, 5), max_size=200))
def test_in_any_time_no_more_is_let_in_than_the_limit_and_its_refilling(limit: int, pauses: list[float]) -> None:
    asked, now, let_in = bucket(limit), 0.0, list[float]()
    for pause in pauses:
        now += pause
        if not asked.wait(now):
            asked.add(1, now)
            let_in.append(now)
    for first, start in enumerate(let_in):
        assert len(let_in) - first <= limit * (1 + (now - start) / MINUTE) + 0.01


def test_what_is_asked_all_the_time_gets_the_whole_limit_each_minute() -> None:
    asked, counts = bucket(60), dict.fromkeys(range(5), 0)
    for step in range(5 * 600):
        if not asked.wait(step / 10):
            asked.add(1, step / 10)
            counts[step // 600] += 1
    assert list(counts.values()) == [119, 60, 60, 60, 60], "at first what a quiet minute has left, too"


def test_a_clock_that_stands_still_or_goes_back_loses_nothing() -> None:
    spent = bucket(60, 10.0)
    for now in (10.0, 10.0, 9.0):
        spent.add(1, now)
    assert spent.room(9.0) == Room(60, 57, 3.0)
    assert spent.room(11.0) == Room(60, 58, 2.0)


def test_without_limits_there_is_always_room() -> None:
    load = held_to(TenantRecord(name=ACME))
    load.requests = 10_000
    load.spend(Totals(1, 10**12), 0.0)
    load.ask(1, 0.0)
    assert not load.buckets
    assert load.over(TenantRecord(name=ACME), 0.0) is None


def test_requests_at_once_are_counted_as_they_come_and_go() -> None:
    tenant = TenantRecord(name=ACME, requests_at_once=2)
    load = held_to(tenant)
    load.requests = 1
    assert load.over(tenant, 0.0) is None
    load.requests = 2
    assert load.over(tenant, 0.0) == (Limit.REQUESTS_AT_ONCE, RETRY_SECONDS)


def test_requests_a_minute_say_how_long_to_wait() -> None:
    tenant = TenantRecord(name=ACME, requests_per_minute=2)
    load = held_to(tenant, 10.0)
    load.ask(1, 10.0)
    assert load.over(tenant, 10.0) is None
    load.ask(1, 10.0)
    assert load.over(tenant, 10.5) == (Limit.REQUESTS_PER_MINUTE, 30)
    assert load.over(tenant, 40.0) is None
    assert not load.idle(69.0)
    assert load.idle(70.0)


def test_tokens_that_were_used_beyond_the_limit_are_paid_back() -> None:
    tenant = TenantRecord(name=ACME, tokens_per_minute=60)
    load = held_to(tenant)
    load.spend(Totals(1, 100, 10**6, 50), 0.0)
    assert load.over(tenant, 0.0) == (Limit.TOKENS_PER_MINUTE, 91)
    assert load.over(tenant, 90.0) == (Limit.TOKENS_PER_MINUTE, 1)
    assert load.over(tenant, 91.0) is None
    assert not load.idle(149.0)
    assert load.idle(150.0)


USED = Totals(requests=1, uncached_tokens=30, cached_tokens=500, output_tokens=7, spend=9_000_000)
COUNTED = {"requests": 1, "tokens": 37, "uncached_tokens": 30, "cached_tokens": 500, "output_tokens": 7}


@pytest.mark.parametrize("limit", PER_MINUTE)
def test_each_limit_of_a_minute_counts_its_own_unit(limit: Limit) -> None:
    used = {**COUNTED, "spend": 9_000_000}[limit.unit]
    for most, refused in ((used + 1, False), (used, True)):
        tenant = TenantRecord(name=ACME, **{limit: most})  # type: ignore[arg-type]
        load = held_to(tenant)
        assert load.over(tenant, 0.0) is None
        load.ask(1, 0.0)
        load.spend(USED, 0.0)
        assert load.over(tenant, 0.0) == ((limit, max(1, ceil(60 / most))) if refused else None)
        assert load.over(tenant, 60.0) is None
    assert (load.counts, load.priced) == (limit.unit != "requests", limit.unit == "spend")


def test_clients_are_told_of_each_unit_that_their_api_has_a_name_for() -> None:
    load = held_to(TenantRecord(name=ACME, **dict.fromkeys(PER_MINUTE, 1000)))  # type: ignore[arg-type]
    load.ask(1, 0.0)
    load.spend(USED, 0.0)
    rooms = load.rooms(0.0)
    told = (rooms.requests, rooms.tokens, rooms.uncached_tokens, rooms.output_tokens)
    assert [room and room.remaining for room in told] == [999, 963, 970, 993]


def test_a_load_is_limited_by_the_present_record_of_its_tenant() -> None:
    load = TenantLoad()
    for limit in Limit:
        load.hold_to(TenantRecord(name=ACME, **{limit: 1}), 0.0, OtherReplicas())  # type: ignore[arg-type]
        assert load.limited
        load.hold_to(TenantRecord(name=ACME), 0.0, OtherReplicas())
        assert not load.limited


def test_a_changed_limit_keeps_what_was_used_and_a_new_one_is_whole() -> None:
    load = held_to(TenantRecord(name=ACME, tokens_per_minute=100))
    load.spend(Totals(1, 90), 0.0)
    for most, left in ((200, 110), (50, 0)):
        load.hold_to(TenantRecord(name=ACME, tokens_per_minute=most), 0.0, OtherReplicas())
        tokens = load.rooms(0.0).tokens
        assert tokens is not None
        assert (tokens.limit, tokens.remaining) == (most, left)
    load.hold_to(TenantRecord(name=ACME), 0.0, OtherReplicas())
    assert load.rooms(0.0).tokens is None
    load.hold_to(TenantRecord(name=ACME, tokens_per_minute=50), 0.0, OtherReplicas())
    assert load.rooms(0.0).tokens == Room(50, 50, 0.0)


def test_a_lease_that_was_given_up_begins_anew() -> None:
    others = OtherReplicas(shared=True)
    others.number = 2
    tenant, load = TenantRecord(name=ACME, requests_per_minute=60), TenantLoad()
    load.hold_to(tenant, 0.0, others)
    asked = load.buckets[Limit.REQUESTS_PER_MINUTE]
    assert (asked.level, asked.free, asked.share) == (15.0, 45.0, 0.5)
    load.ask(5, 0.0)
    (report,) = load.reports(0.0).values()
    assert (report.total, report.told, report.leaves) == (5, 0, True)
    load.take(Limit.REQUESTS_PER_MINUTE, Lease(0.0, 0.0, 55.0, report.total), 0.0)
    assert (load.record, load.reports(0.0)) == (None, {})
    others.free = {(ACME, Limit.REQUESTS_PER_MINUTE): -6.0}
    load.hold_to(tenant, 0.0, others)
    assert load.over(tenant, 0.0) == (Limit.REQUESTS_PER_MINUTE, 7)


def test_nothing_needs_to_be_remembered_of_who_does_nothing() -> None:
    load = TenantLoad()
    assert load.idle(0.0)
    load.hold_to(TenantRecord(name=ACME, tokens_per_minute=60), 0.0, OtherReplicas())
    assert load.idle(0.0)
    load.spend(Totals(1, 1), 0.0)
    assert not load.idle(59.0)
    assert load.idle(60.0)
    load.requests = 1
    assert not load.idle(60.0)
