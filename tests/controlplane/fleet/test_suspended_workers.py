"""Workers whose engines answer and serve nothing: no requests, and their state by name."""

from __future__ import annotations

from typing import Any

import pytest

from cachefleet_controlplane.fleet.worker_troubles import Trouble
from cachefleet_controlplane.report_streams.report_stream import FORGET_SECONDS
from cachefleet_controlplane.routing.decision import Reason
from cachefleet_controlplane.selection.eligibility import Duty
from cachefleet_core.engine.suspensions import Suspension
from cachefleet_core.report_frames import Phase, State
from tests.controlplane.fleet.test_fleet import KEYS, route
from tests.controlplane.fleets import MODEL, LiveFleet, fleet_of, pool, view, wid
from tests.controlplane.frames import state


def says(fleet: LiveFleet, link: Any, **said: Any) -> None:
    fleet.receive(link.connection, state(0, digest=fleet.index.digest(wid("demo-0")), held=len(KEYS), **said))


@pytest.mark.parametrize("why", [*Suspension, "of a later agent"])
def test_it_gets_nothing_and_is_asked_again_once_it_serves(why: str) -> None:
    fleet = fleet_of("demo-0", "demo-1")
    link = fleet.report("demo-0", KEYS)
    fleet.report("demo-1")
    assert route(fleet).worker == "demo-0"
    says(fleet, link, suspended=why)
    assert {route(fleet).worker for _ in range(4)} == {"demo-1"}
    assert [one.name for one in fleet.renderers(MODEL)] == ["demo-1"]
    assert (fleet.worker("demo-0").suspended, fleet.worker("demo-1").suspended) == (why, "")
    assert (fleet.pool().workers.total, fleet.pool().workers.ready) == (2, 1)
    troubles = fleet.troubles({"default/demo/demo-0", "default/demo/demo-1"})
    assert troubles == {"default/demo/demo-0": Trouble(suspended=True)}
    says(fleet, link)
    assert route(fleet).worker == "demo-0"
    assert fleet.pool().workers.ready == 2


def test_where_no_worker_serves_it_is_said_how_many_and_why() -> None:
    fleet = fleet_of("demo-0", "demo-1", "demo-2")
    for name, why in (("demo-0", "asleep"), ("demo-1", "asleep"), ("demo-2", "paused")):
        fleet.report(name, suspended=why)
    assert route(fleet).reason is Reason.NO_READY_WORKER
    assert fleet.suspended(MODEL) == {"asleep": 2, "paused": 1}
    assert not fleet.suspended(MODEL, Duty.PREFILL)


def test_a_worker_whose_agent_has_fallen_silent_is_not_believed_for_ever() -> None:
    fleet = fleet_of("demo-0")
    fleet.report("demo-0", suspended="asleep")
    fleet.now += FORGET_SECONDS
    assert route(fleet).worker == ""
    fleet.now += 0.1
    assert (route(fleet).worker, fleet.worker().suspended) == ("demo-0", "")


def test_a_new_life_of_the_engine_is_not_asleep() -> None:
    fleet = fleet_of("demo-0")
    fleet.report("demo-0", suspended="asleep")
    fleet.report("demo-0", epoch="another")
    assert route(fleet).worker == "demo-0"


def test_one_that_is_not_ready_either_is_not_counted() -> None:
    fleet = fleet_of("demo-0")
    fleet.report("demo-0", suspended="asleep")
    fleet.update_pools([view(pool(), [], ["demo-0"])])
    assert not fleet.suspended(MODEL)


def test_a_state_of_the_release_before_says_that_it_serves() -> None:
    before = State(sequence=0, digest=0, held=0, phase=Phase.READY, running=0, waiting=0)
    assert before.suspended == ""
