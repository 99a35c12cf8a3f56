"""Of the pods that are listed only those get requests whose agent has come with a token of that very pod."""

from __future__ import annotations

import pytest

from cachefleet_controlplane.fleet.startup_readiness import StartupReadiness
from cachefleet_controlplane.pools.source import PoolView, WorkerEndpoint
from cachefleet_controlplane.routing.decision import Knowledge, Prompt, Verdict
from tests.controlplane.fleets import MODEL, FakeLink, LiveFleet, pool
from tests.controlplane.frames import hello

PROMPT = Prompt(tokens=17, keys=b"", block_size=16, max_tokens=16, knowledge=Knowledge.LOAD)


def listed(*pods: tuple[str, str]) -> LiveFleet:
    """A fleet whose source lists ready pods by name and uid."""
    fleet = LiveFleet()
    _list(fleet, *pods)
    return fleet


def _list(fleet: LiveFleet, *pods: tuple[str, str]) -> None:
    endpoints = tuple(WorkerEndpoint(name, f"http://{name}", ready=True, pod=uid) for name, uid in pods)
    fleet.update_pools([PoolView(pool(), endpoints)])


def announce(fleet: LiveFleet, name: str, uid: str) -> None:
    fleet.hello(fleet.connect(FakeLink(), pod=uid), hello(name))


def asked(fleet: LiveFleet) -> set[str]:
    """Who may be sent a prompt."""
    return {endpoint.name for endpoint in fleet.renderers(MODEL)}


def test_nobody_is_asked_before_its_agent_has_come() -> None:
    fleet = listed(("demo-0", "u0"), ("demo-1", "u1"))
    assert asked(fleet) == set()
    assert fleet.route(MODEL, PROMPT).verdict is Verdict.REJECT
    announce(fleet, "demo-1", "u1")
    assert asked(fleet) == {"demo-1"}
    assert fleet.route(MODEL, PROMPT).worker == "demo-1"
    assert [(one.name, one.ready, one.vouched) for one in fleet.view().workers] == [
        ("demo-0", True, False),
        ("demo-1", True, True),
    ]
    assert fleet.pool().workers.ready == 1


def test_an_agent_vouches_for_its_own_pod_alone() -> None:
    fleet = listed(("demo-0", "u0"))
    announce(fleet, "demo-0", "of an earlier pod of this name")
    assert asked(fleet) == set()
    announce(fleet, "demo-0", "u0")
    assert asked(fleet) == {"demo-0"}
    _list(fleet, ("demo-0", "u1"))
    assert asked(fleet) == set()


def test_an_agent_that_came_is_remembered_while_it_is_away() -> None:
    """As before: reports that are lost cost cache hits, never answers."""
    fleet = listed(("demo-0", "u0"))
    connection = fleet.connect(FakeLink(), pod="u0")
    fleet.hello(connection, hello("demo-0"))
    fleet.disconnect(connection)
    fleet.now += 1000
    fleet.expire()
    assert asked(fleet) == {"demo-0"}


@pytest.mark.parametrize("uid", ["", "u0"])
def test_where_tokens_are_of_no_pod_a_hello_is_enough(uid: str) -> None:
    fleet = listed(("demo-0", uid))
    announce(fleet, "demo-0", "")
    assert asked(fleet) == {"demo-0"}


def test_outside_of_kubernetes_nobody_needs_an_agent() -> None:
    assert asked(listed(("demo-0", ""))) == {"demo-0"}


def test_a_replica_that_starts_waits_for_those_too() -> None:
    fleet = listed(("demo-0", "u0"))
    readiness = StartupReadiness(seconds=15, clock=lambda: 0.0)
    readiness.begin()
    assert readiness.awaited(fleet.ready_workers) == ["default/demo/demo-0"]


def test_a_replica_that_could_serve_nobody_is_not_ready_by_time() -> None:
    """Else a rollout of replicas to which no agent can report would end those that serve."""
    fleet, times = listed(("demo-0", "u0"), ("demo-1", "u1")), [0.0]
    readiness = StartupReadiness(seconds=15, clock=lambda: times[0])
    readiness.begin()
    times[0] = 1000.0
    assert len(readiness.awaited(fleet.ready_workers)) == 2
    announce(fleet, "demo-0", "u0")
    assert readiness.awaited(fleet.ready_workers) == []
