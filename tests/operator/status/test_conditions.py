from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_operator.reasons import Reason
from cachefleet_operator.status.conditions import findings
from cachefleet_operator.status.pool_assessment import Verdict, Workers, judge, workers_of
from cachefleet_operator.status.status import status
from tests.operator.pools import document

GOOD = judge(document())[1]
TOO_MUCH = judge(document({"prefixCache": {"budgetMiB": 9999}}))[1]
UNKNOWN = judge(document({"model": {"kvBytesPerToken": None}}))[1]
INVALID = Verdict(("Invalid", "spec.x: is wrong"))
ALL = Workers(wanted=2, total=2, ready=2, updated=2, current=True)
NONE = Workers(wanted=2)

counts = st.integers(0, 3)
workers = st.builds(
    Workers,
    wanted=counts,
    total=counts,
    ready=counts,
    updated=counts,
    current=st.booleans(),
    stalled=st.sampled_from(["", "took too long"]),
    failure=st.sampled_from(["", "quota"]),
)
verdicts = st.sampled_from([GOOD, TOO_MUCH, UNKNOWN, INVALID])


def said(verdict: Verdict, seen: Workers) -> dict[str, tuple[str, str]]:
    return {finding.type: (finding.status, finding.reason) for finding in findings(verdict, seen)}


@pytest.mark.parametrize(
    ("verdict", "seen", "expected"),
    [
        (GOOD, ALL, {"Ready": ("True", "WorkersReady"), "Progressing": ("False", "Settled")}),
        (UNKNOWN, ALL, {"Ready": ("True", "WorkersReady"), "BudgetAdmitted": ("Unknown", "BytesPerTokenUnknown")}),
        (GOOD, NONE, {"Ready": ("False", "RollingOut"), "WorkersAvailable": ("False", "NoneReady")}),
        (
            GOOD,
            Workers(wanted=2, total=2, ready=1, updated=2, current=True),
            {"Ready": ("False", "RollingOut"), "WorkersAvailable": ("True", "SomeReady")},
        ),
        (
            GOOD,
            Workers(wanted=2, total=2, ready=2, updated=2, current=False),
            {"Ready": ("False", "RollingOut"), "WorkersAvailable": ("True", "AllReady")},
        ),
        (
            GOOD,
            Workers(wanted=1, total=1, updated=1, current=True, stalled="too long"),
            {"Ready": ("False", "Stalled"), "Progressing": ("False", "Stalled")},
        ),
        (
            GOOD,
            Workers(wanted=1, current=True, failure="exceeded quota"),
            {"Ready": ("False", "PodsRefused"), "WorkersAvailable": ("False", "PodsRefused")},
        ),
        (
            GOOD,
            Workers(current=True),
            {"Ready": ("True", "NoWorkersWanted"), "WorkersAvailable": ("False", "NoWorkersWanted")},
        ),
        (
            TOO_MUCH,
            NONE,
            {
                "Ready": ("False", "BudgetExceedsKVCache"),
                "BudgetAdmitted": ("False", "BudgetExceedsKVCache"),
                "Progressing": ("False", "Held"),
            },
        ),
        (INVALID, ALL, {"Ready": ("False", "Invalid"), "BudgetAdmitted": ("Unknown", "ConfigInvalid")}),
    ],
)
def test_says(verdict: Verdict, seen: Workers, expected: dict[str, tuple[str, str]]) -> None:
    assert {name: said(verdict, seen)[name] for name in expected} == expected


def test_a_refused_budget_is_told_with_both_numbers() -> None:
    budget = next(finding for finding in findings(TOO_MUCH, NONE) if finding.type == "BudgetAdmitted")
    assert "9999" in budget.message
    assert "4544" in budget.message


@pytest.mark.parametrize(
    "reason",
    ["Invalid", "Refused", "NameTaken", "InvalidPodTemplate", "ImageVolumesUnsupported", "DevicesNotClaimable"],
)
def test_a_pool_that_only_a_change_helps_is_stalled(reason: str) -> None:
    assert said(Verdict((Reason(reason), "odd")), ALL)["Stalled"] == ("True", reason)


@pytest.mark.parametrize(
    ("verdict", "seen", "expected"),
    [
        (TOO_MUCH, NONE, ("True", "BudgetExceedsKVCache")),
        (GOOD, Workers(wanted=1, total=1, updated=1, current=True, stalled="too long"), ("True", "Stalled")),
        (Verdict((Reason.CHAT_TEMPLATE_MISSING, "may come")), NONE, ("False", "Converges")),
        (UNKNOWN, ALL, ("False", "Converges")),
        (GOOD, NONE, ("False", "Converges")),
        (GOOD, ALL, ("False", "Converges")),
    ],
    ids=["budget", "rollout", "chat template", "size of a token", "starting", "ready"],
)
def test_a_pool_is_stalled_only_where_waiting_will_not_do(
    verdict: Verdict, seen: Workers, expected: tuple[str, str]
) -> None:
    assert said(verdict, seen)["Stalled"] == expected


@given(verdicts, workers)
def test_ready_means_that_all_is_well(verdict: Verdict, seen: Workers) -> None:
    conditions = said(verdict, seen)
    if conditions["Ready"][0] == "True":
        assert verdict.admitted
        assert seen.settled
        assert conditions["Progressing"][0] == "False"
    assert [finding.type for finding in findings(verdict, seen)][-1] == "Ready"


@given(verdicts, workers, verdicts, workers)
def test_a_condition_keeps_its_time_until_its_status_changes(
    first: Verdict, seen: Workers, second: Verdict, later: Workers
) -> None:
    before = _status(first, seen, {}, "2026-01-01T00:00:00Z")
    after = _status(second, later, before, "2026-01-02T00:00:00Z")
    for old, new in zip(before["conditions"], after["conditions"], strict=True):
        assert (old["lastTransitionTime"] == new["lastTransitionTime"]) == (old["status"] == new["status"])


def test_a_deployment_that_has_not_seen_its_spec_is_not_current() -> None:
    deployment = {"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}}
    assert not workers_of(deployment, wanted=1, applied=True).current
    deployment["status"] = {"observedGeneration": 2}
    assert workers_of(deployment, wanted=1, applied=True).current
    assert not workers_of(deployment, wanted=1, applied=False).current


def _status(verdict: Verdict, seen: Workers, previous: dict[str, Any], now: str) -> dict[str, Any]:
    return status(verdict, seen, name="demo", generation=1, previous=previous, now=now)
