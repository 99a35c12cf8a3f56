"""Models of pools that other control planes serve: their names count here, their workers do not."""

from __future__ import annotations

from typing import Any

from cachefleet_controlplane.pools.control_plane_share import share_of
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_core.pool.spec import PrefixCachePool, read_pool
from tests.controlplane.fleets import LiveFleet
from tests.operator.pools import document


def pool(
    name: str, model: str, control_plane: str = "a", namespace: str = "serving", **of_model: Any
) -> PrefixCachePool:
    spec = {"model": {"name": model, **of_model}, "controlPlane": control_plane}
    return read_pool(document(spec, name=name, namespace=namespace))


def listed(*pools: PrefixCachePool) -> list[PoolView]:
    return [PoolView(one, (WorkerEndpoint(f"{one.metadata.name}-0", "http://w", ready=True),)) for one in pools]


def fleet_of_a(*pools: PrefixCachePool) -> LiveFleet:
    fleet, share = LiveFleet(), share_of("a", listed(*pools), {"b"})
    fleet.update_pools(share.own, (), share.others)
    return fleet


def test_pools_are_divided_by_the_control_plane_that_they_name() -> None:
    views = listed(pool("own", "m"), pool("other", "n", "b"), pool("lost", "o", "c"), pool("gone", "p", "c"))
    share = share_of("a", views, {"b"})
    assert [view.key for view in share.own] == ["serving/own"]
    assert [view.key for view in share.others] == ["serving/other", "serving/lost", "serving/gone"]
    assert share.unknown == {"c": ("serving/lost", "serving/gone")}
    told = "pools name control planes that this one does not know: c (serving/lost, serving/gone)"
    assert share.problem == told
    assert share_of("b", views, {"a", "c"}).problem == ""


def test_a_model_elsewhere_is_listed_and_has_no_worker_here() -> None:
    fleet = fleet_of_a(pool("own", "m"), pool("other", "n", "b"))
    assert [model.name for model in fleet.models()] == ["m"]
    assert [model.name for model in fleet.models_elsewhere()] == ["n"]
    found = fleet.elsewhere("n")
    assert found is not None
    assert (found.control_plane, found.model.pools, found.model.max_model_len) == ("b", ("serving/other",), 2048)
    assert fleet.elsewhere("m") is fleet.elsewhere("nobodys") is None
    assert fleet.serving("n") is None
    assert {worker.pool for worker in fleet.view().workers} == {"serving/own"}


def test_a_name_belongs_to_the_same_namespace_at_all_of_them() -> None:
    """The older pool has the bare name, whichever control plane serves it."""
    young = pool("own", "m", namespace="new")
    old = pool("other", "m", "b", namespace="old").model_copy(
        update={
            "metadata": pool("other", "m", "b", namespace="old").metadata.model_copy(
                update={"creation_timestamp": "2020"}
            )
        }
    )
    fleet = fleet_of_a(young, old)
    bare = fleet.elsewhere("m")
    assert bare is not None
    assert (bare.control_plane, bare.model.namespace) == ("b", "old")
    assert [model.name for model in fleet.models()] == ["new/m"]
    assert fleet.elsewhere("new/m") is None
    assert [model.name for model in fleet.models_elsewhere()] == ["m"]


def test_where_both_serve_a_model_each_serves_it_with_its_own_workers() -> None:
    """As while a model moves from one control plane to another: by a second pool, then without the first."""
    before, after = pool("first", "m"), pool("second", "m", "b")
    fleet = fleet_of_a(before, after)
    served = fleet.serving("m")
    assert served is not None
    assert (served.pools, fleet.elsewhere("m"), fleet.models_elsewhere()) == (("serving/first",), None, [])
    share = share_of("a", listed(after), {"b"})
    fleet.update_pools(share.own, (), share.others)
    moved = fleet.elsewhere("m")
    assert moved is not None
    assert (fleet.serving("m"), moved.control_plane) == (None, "b")


def test_adapters_are_where_their_model_is() -> None:
    adapters = [{"name": "sql", "source": "org/sql"}]
    fleet = fleet_of_a(pool("own", "m"), pool("other", "n", "b", adapters=adapters))
    found = fleet.elsewhere("sql")
    assert found is not None
    assert (found.control_plane, found.model.base, found.model.upstream) == ("b", "n", "sql")
    assert [model.name for model in fleet.models_elsewhere()] == ["n", "sql"]
