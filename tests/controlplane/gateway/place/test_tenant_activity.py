"""Who uses which fleets: against a list of all that was seen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.place.tenant_activity import ACTIVE_SECONDS, MAX_FLEETS, TenantActivity

FLEET = ("default", "a")
TENANTS = ("x", "y", "z")

moments = st.lists(st.tuples(st.sampled_from(TENANTS), st.floats(0, ACTIVE_SECONDS)), max_size=12)


@given(moments)
def test_a_fleet_is_shared_while_another_tenant_was_seen_lately(gaps: list[tuple[str, float]]) -> None:
    activity, seen, now = TenantActivity(), list[tuple[str, float]](), 0.0
    for tenant, gap in gaps:
        now += gap
        activity.seen(FLEET, tenant, now)
        seen.append((tenant, now))
        later = now + gap / 2
        for one in TENANTS:
            others = [at for name, at in seen if name != one and later - at <= ACTIVE_SECONDS]
            assert activity.shared(FLEET, one, later) == bool(others)
            assert not activity.shared(("default", "b"), one, later)


def test_the_fleet_seen_first_is_forgotten_for_one_too_many() -> None:
    activity = TenantActivity()
    for number in range(MAX_FLEETS + 1):
        activity.seen(("default", str(number)), "x", 0.0)
    assert not activity.shared(("default", "0"), "y", 0.0)
    assert activity.shared(("default", "1"), "y", 0.0)
    assert activity.shared(("default", str(MAX_FLEETS)), "y", 0.0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(TENANTS), st.integers(1, 4)), max_size=12))
def test_sequences_under_way_are_counted_by_worker_and_tenant(sent: list[tuple[str, str, int]]) -> None:
    activity = TenantActivity()
    for place, (worker, tenant, sequences) in enumerate(sent, 1):
        activity.add(worker, tenant, sequences)
        for one in "ab":
            for other in TENANTS:
                under = sum(number for *where, number in sent[:place] if where == [one, other])
                assert activity.underway(one, other) == under
    for worker, tenant, sequences in sent:
        activity.add(worker, tenant, -sequences)
    assert not activity._underway
