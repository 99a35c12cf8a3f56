"""A spec that the operator refuses reaches no worker and changes no decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachefleet_controlplane.pools.kubernetes_objects import merge, parse_pool, parse_slice
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_core.pool.admitted import admission
from cachefleet_core.report_frames import Policy
from tests.controlplane.fleets import LiveFleet, view
from tests.controlplane.fleets import pool as declared
from tests.controlplane.pools.kube_server import endpoint, endpoint_slice
from tests.operator.pools import document

SLICE = parse_slice(endpoint_slice(endpoint("demo-0", "10.0.0.1")))


def views(item: dict[str, Any]) -> tuple[PoolView, ...]:
    assert SLICE is not None
    return merge([parse_pool(item)], [SLICE])


def admitted(**spec: Any) -> dict[str, Any]:
    item = document(spec)
    return {**item, "status": {"admitted": admission(item)}}


def edited(item: dict[str, Any], generation: int = 2, **spec: Any) -> dict[str, Any]:
    return {**document(spec, generation=generation), "status": item["status"]}


def report(fleet: LiveFleet) -> Any:
    return fleet.report(pool="serving/demo")


def policies(link: Any) -> list[Policy]:
    return [frame for frame in link.sent if isinstance(frame, Policy)]


REFUSED: dict[str, Any] = {
    "role": "Prefill",
    "prefixCache": {"budgetMiB": 9999},
    "hit": {"threshold": 0.9},
    "preemption": {"maxHandBacks": 16},
    "admission": {"minFreeBlockPercent": 90, "maxQueueSeconds": 3600},
    "tenancy": {"isolation": "Shared"},
    "continuation": {"enabled": False},
    "engine": {"maxModelLen": 4096, "kvTransfer": {"kv_connector": "NixlConnector"}},
}


def test_a_refused_edit_changes_nothing_that_is_decided_by() -> None:
    fleet, item = LiveFleet(), admitted()
    fleet.update_pools(views(item))
    link, before = report(fleet), fleet.serving("tiny")
    fleet.update_pools(views(edited(item, **REFUSED)))
    assert fleet.serving("tiny") == before
    assert [policy.budget_mib for policy in policies(link)] == [512]


def test_nor_does_it_after_a_restart_of_the_control_plane() -> None:
    fleet, again, item = LiveFleet(), LiveFleet(), admitted()
    fleet.update_pools(views(item))
    again.update_pools(views(edited(item, **REFUSED)))
    assert policies(report(again)) == policies(report(fleet))
    assert [one.declared for one in again.models()] == [one.declared for one in fleet.models()]


def test_what_is_admitted_later_is_told_with_its_own_generation() -> None:
    fleet, item = LiveFleet(), admitted()
    fleet.update_pools(views(edited(item, **REFUSED)))
    link = report(fleet)
    later = document({"prefixCache": {"budgetMiB": 256}}, generation=3)
    fleet.update_pools(views({**later, "status": {"admitted": admission(later)}}))
    assert [(policy.generation, policy.budget_mib) for policy in policies(link)] == [(1, 512), (3, 256)]


def test_a_pool_that_was_never_admitted_is_known_and_tells_workers_nothing() -> None:
    fleet = LiveFleet()
    fleet.update_pools(views(document({"prefixCache": {"budgetMiB": 9999}})))
    link = report(fleet)
    assert policies(link) == []
    fleet.update_pools(views(admitted()))
    assert [policy.budget_mib for policy in policies(link)] == [512]


def test_what_was_in_force_stays_when_a_status_is_lost() -> None:
    fleet, item = LiveFleet(), admitted()
    fleet.update_pools(views(item))
    link = report(fleet)
    fleet.update_pools(views(document(REFUSED, generation=2)))
    assert [policy.budget_mib for policy in policies(link)] == [512]
    assert fleet.models()[0].declared[0].spec.hit.threshold == 0


def test_a_recreated_pool_does_not_inherit_what_was_in_force() -> None:
    fleet = LiveFleet()
    ends = (WorkerEndpoint("demo-0", "http://demo-0", ready=True),)
    fleet.update_pools([PoolView(declared(uid="a", hit={"threshold": 0.5}), ends)])
    fleet.update_pools([replace(view(declared(uid="b")), admitted=False)])
    assert fleet.models()[0].declared[0].spec.hit.threshold == 0
