"""Endpoints whose slices went out of sight: how long they stay, and what ends them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.pools.kubernetes_objects import PoolEndpoints
from cachefleet_controlplane.pools.recent_endpoints import KEPT_SECONDS, MOVED_SECONDS, RecentEndpoints
from cachefleet_controlplane.pools.source import EndpointEntry

A, B = EndpointEntry("a", "http://10.0.0.1:8000", ready=True), EndpointEntry("b", "http://10.0.0.2:8000", ready=True)
POOL = "serving/demo"


def part(*endpoints: EndpointEntry, pool: str = POOL) -> PoolEndpoints:
    return PoolEndpoints(pool, endpoints)


class Seen:
    """What is kept as time goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recent = RecentEndpoints(lambda: self.now)

    def workers(self, pools: tuple[str, ...] = (POOL,), **live: PoolEndpoints) -> list[str]:
        return sorted(each.name for one in self.recent.with_kept(live, pools=pools) for each in one.endpoints)


def test_they_stay_until_the_slice_is_back() -> None:
    seen = Seen()
    assert seen.workers(x=part(A, B)) == ["a", "b"]
    assert seen.workers() == ["a", "b"]
    assert seen.recent.ends_in() == KEPT_SECONDS
    seen.now += KEPT_SECONDS - 1
    assert seen.workers() == ["a", "b"]
    assert seen.workers(x=part(A)) == ["a"], "b has left with its pod"
    assert seen.recent.ends_in() is None


def test_they_go_when_nothing_tells_of_them_any_more() -> None:
    seen = Seen()
    seen.workers(x=part(A))
    seen.workers()
    seen.now += KEPT_SECONDS
    assert seen.recent.ends_in() == 0
    assert seen.workers() == []


def test_a_service_made_anew_tells_which_are_left() -> None:
    seen = Seen()
    seen.workers(old=part(A, B))
    seen.workers()
    assert seen.workers(new=part(B)) == ["a", "b"]
    seen.now += MOVED_SECONDS
    assert seen.workers(new=part(B)) == ["b"]


def test_a_slice_that_is_live_counts_more_than_one_that_is_not() -> None:
    seen = Seen()
    seen.workers(old=part(A))
    unready = EndpointEntry("a", "http://10.0.0.1:8000", ready=False)
    kept = seen.recent.with_kept({"new": part(unready)}, pools={POOL})
    assert [each.ready for one in kept for each in one.endpoints] == [False]


def test_of_a_deleted_pool_nothing_stays() -> None:
    seen = Seen()
    seen.workers(x=part(A))
    assert seen.workers(pools=()) == []
    assert seen.workers() == []


SLICES = st.dictionaries(st.sampled_from("xyz"), st.sets(st.sampled_from([A, B])).map(lambda each: part(*each)))


@given(st.lists(st.tuples(SLICES, st.floats(0, KEPT_SECONDS))))
def test_no_live_endpoint_is_lost_and_none_outlives_its_time(
    steps: list[tuple[dict[str, PoolEndpoints], float]],
) -> None:
    seen, last = Seen(), dict[str, float]()
    for live, seconds in steps:
        seen.now += seconds
        names = {each.name for one in live.values() for each in one.endpoints}
        last |= dict.fromkeys(names, seen.now)
        found = {each.name for one in seen.recent.with_kept(live, pools={POOL}) for each in one.endpoints}
        assert names <= found
        before = {name for name in found - names if seen.now - last[name] <= 2 * KEPT_SECONDS}
        assert found - names == before
        assert (seen.recent.ends_in() is None) == (not seen.recent._gone)
