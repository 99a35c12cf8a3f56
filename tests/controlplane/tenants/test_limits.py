"""What a tenant does at once and has spent, held against an account kept the long way."""

from __future__ import annotations

from math import floor

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.store.tenant_records import TenantRecord
from cachefleet_controlplane.tenants.limits import RETRY_SECONDS, WINDOW_SECONDS, Limit, Spent, TenantLoad
from cachefleet_core.tenancy import TenantId

ACME = TenantId("acme")
EVENTS = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 1000)), max_size=60)


@given(EVENTS, st.integers(1, 3000))
def test_the_window_counts_what_was_spent_in_it_and_tells_when_it_is_under_a_limit(
    events: list[tuple[float, int]], limit: int
) -> None:
    spent, account, now = Spent(), list[tuple[int, int]](), 1000.0
    for pause, tokens in events:
        now += pause
        spent.add(tokens, now)
        account.append((floor(now), tokens))
        assert spent.total == within(account, now)
        wait = spent.wait(limit, now)
        assert 0 <= wait <= WINDOW_SECONDS
        assert within(account, now + wait) < limit
        assert wait == 0 or within(account, now + wait - 1) >= limit


def within(account: list[tuple[int, int]], now: float) -> int:
    return sum(tokens for second, tokens in account if second + WINDOW_SECONDS > now)


@given(EVENTS)
def test_the_window_needs_no_more_room_than_its_seconds(events: list[tuple[float, int]]) -> None:
    spent, now = Spent(), 0.0
    for pause, tokens in events:
        now += pause / 90
        spent.add(tokens, now)
        assert len(spent._seconds) <= WINDOW_SECONDS + 1


def test_a_clock_that_stands_still_or_goes_back_loses_nothing() -> None:
    spent = Spent()
    for now in (10.0, 10.5, 9.0):
        spent.add(1, now)
    assert spent.total == 3
    spent.expire(69.9)
    assert spent.total == 3
    spent.expire(70.0)
    assert spent.total == 0


def test_without_limits_there_is_always_room() -> None:
    load = TenantLoad()
    load.requests = 10_000
    load.spent.add(10**12, 0.0)
    assert load.over(TenantRecord(name=ACME), 0.0) is None


def test_requests_at_once_are_counted_as_they_come_and_go() -> None:
    load, tenant = TenantLoad(), TenantRecord(name=ACME, requests_at_once=2)
    load.requests = 1
    assert load.over(tenant, 0.0) is None
    load.requests = 2
    assert load.over(tenant, 0.0) == (Limit.REQUESTS_AT_ONCE, RETRY_SECONDS)


def test_requests_of_the_last_minute_say_how_long_to_wait() -> None:
    load, tenant = TenantLoad(), TenantRecord(name=ACME, requests_per_minute=2)
    load.asked.add(1, 10.0)
    assert load.over(tenant, 20.0) is None
    load.asked.add(1, 30.0)
    assert load.over(tenant, 30.5) == (Limit.REQUESTS_PER_MINUTE, 40)
    assert load.over(tenant, 70.0) is None
    assert not load.idle(80.0)
    assert load.idle(90.0)


def test_a_load_is_limited_by_the_present_record_of_its_tenant() -> None:
    load = TenantLoad()
    for limit in Limit:
        load.hold_to(TenantRecord(name=ACME, **{limit: 1}))  # type: ignore[arg-type]
        assert load.limited
        load.hold_to(TenantRecord(name=ACME))
        assert not load.limited


def test_tokens_of_the_last_minute_say_how_long_to_wait() -> None:
    load, tenant = TenantLoad(), TenantRecord(name=ACME, tokens_per_minute=100)
    load.spent.add(60, 10.0)
    assert load.over(tenant, 20.0) is None
    load.spent.add(50, 30.0)
    assert load.over(tenant, 30.5) == (Limit.TOKENS_PER_MINUTE, 40)
    assert load.over(tenant, 70.0) is None


def test_nothing_needs_to_be_remembered_of_who_does_nothing() -> None:
    load = TenantLoad()
    assert load.idle(0.0)
    load.spent.add(1, 0.0)
    assert not load.idle(59.0)
    assert load.idle(60.0)
    load.requests = 1
    assert not load.idle(60.0)
