from __future__ import annotations

import pytest

from cachefleet_core.report_frames import Phase, Policy
from cachefleet_worker.agent.duties.phases import Condition, phase, unready
from cachefleet_worker.agent.duties.policy_delivery import supersedes

UP = Condition(contract_known=True, answering=True, registered=True)


@pytest.mark.parametrize(
    ("condition", "expected", "reasons"),
    [
        (Condition(), Phase.STARTING, ["engine_starting", "control_plane_not_reached"]),
        (Condition(waited_for=31), Phase.STARTING, ["engine_starting"]),
        (UP, Phase.READY, []),
        (Condition(contract_known=True, answering=True), Phase.READY, ["control_plane_not_reached"]),
        (Condition(contract_known=True, answering=True, waited_for=31), Phase.READY, []),
        (Condition(contract_known=True, answering=True, registered=True, warming=True), Phase.WARMING, ["warming"]),
        (Condition(contract_known=True, registered=True), Phase.FAILED, ["engine_not_answering"]),
        (Condition(registered=True, refused=True), Phase.FAILED, ["engine_refuses_key"]),
        (Condition(registered=True, refused=True, lost_for=5), Phase.FAILED, ["engine_refuses_key"]),
        (Condition(registered=True, lost_for=5), Phase.STARTING, ["engine_lost"]),
        (Condition(registered=True, lost_for=130), Phase.FAILED, ["engine_lost"]),
        (Condition(contract_known=True, answering=True, registered=True, draining=True), Phase.DRAINING, ["draining"]),
        (Condition(registered=True, draining=True), Phase.DRAINING, ["draining", "engine_starting"]),
    ],
)
def test_phase_and_readiness(condition: Condition, expected: Phase, reasons: list[str]) -> None:
    assert phase(condition, failed_seconds=120) is expected
    assert unready(condition, registration_seconds=30) == reasons


@pytest.mark.parametrize(
    ("new", "current", "expected"),
    [
        (Policy(pool="a/b", generation=1), None, True),
        (Policy(pool="a/c", generation=1), None, False),
        (Policy(pool="a/b", uid="u", generation=1), Policy(pool="a/b", uid="u", generation=2), False),
        (Policy(pool="a/b", uid="u", generation=2), Policy(pool="a/b", uid="u", generation=2), True),
        (Policy(pool="a/b", uid="v", generation=1), Policy(pool="a/b", uid="u", generation=2), True),
    ],
)
def test_an_older_policy_is_ignored(new: Policy, current: Policy | None, expected: bool) -> None:  # noqa: FBT001 (a row)
    assert supersedes(new, current, "a/b") is expected
