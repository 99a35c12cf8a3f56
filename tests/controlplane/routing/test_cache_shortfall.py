"""Each rule of a shortfall, their order, and when there is none."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cachefleet_controlplane.routing.cache_shortfall import OLD_REPORT_SECONDS, RULES, Cause, Facts, shortfall

FACTS = Facts(
    predicted_tokens=64,
    cached_tokens=48,
    worker="p/a#0",
    answered_by="p/a#0",
    rendered_tokens=100,
    prompt_tokens=100,
    salt_version=1,
    salt_version_now=1,
    report_age=0.5,
)
BECAUSE: dict[Cause, dict[str, Any]] = {
    Cause.MOVED: {"answered_by": "p/b#0"},
    Cause.RENDERED_DIFFERENTLY: {"prompt_tokens": 101},
    Cause.SALTED: {"salt_version_now": 2},
    Cause.RESTARTED: {"restarted": True},
    Cause.EVICTED: {"evicted": True},
    Cause.WINDOW: {"left_window": True},
    Cause.NOT_LOADED: {"loaded_tokens": 16},
    Cause.IN_FLIGHT: {"coming_tokens": 16},
    Cause.STALE: {"report_age": OLD_REPORT_SECONDS + 0.1},
    Cause.UNREPORTED: {"unreported": True},
    Cause.UNKNOWN: {},
}


@pytest.mark.parametrize("cause", Cause)
def test_each_cause_has_its_rule(cause: Cause) -> None:
    assert shortfall(replace(FACTS, **BECAUSE[cause])) is cause


@pytest.mark.parametrize("cause", Cause)
def test_what_is_more_certain_goes_first(cause: Cause) -> None:
    order = [*(named for named, _ in RULES), Cause.UNKNOWN]
    assert set(order) == set(Cause)
    later = [BECAUSE[other] for other in order[order.index(cause) :]]
    assert shortfall(replace(FACTS, **{name: value for changes in later for name, value in changes.items()})) is cause


@pytest.mark.parametrize("cause", Cause)
@pytest.mark.parametrize("cached", [64, 80, None])
def test_without_less_than_predicted_there_is_none(cause: Cause, cached: int | None) -> None:
    assert shortfall(replace(FACTS, cached_tokens=cached, **BECAUSE[cause])) is None


@pytest.mark.parametrize(
    "untold", [{"rendered_tokens": None}, {"prompt_tokens": None}, {"salt_version": None}, {"salt_version_now": None}]
)
def test_what_nobody_told_is_no_difference(untold: dict[str, Any]) -> None:
    assert shortfall(replace(FACTS, **untold)) is Cause.UNKNOWN


def test_a_report_that_never_came_is_old() -> None:
    assert shortfall(replace(FACTS, report_age=None)) is Cause.STALE


def test_more_missing_than_was_to_be_loaded_has_another_cause() -> None:
    assert shortfall(replace(FACTS, loaded_tokens=15)) is Cause.UNKNOWN
