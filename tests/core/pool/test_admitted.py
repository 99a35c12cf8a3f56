"""Which spec of a pool is in force."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from cachefleet_core.pool.admitted import COPIED_PREFIX_BYTES, InForce, admission, in_force, last_admitted
from cachefleet_core.pool.validation_problems import PoolError
from tests.operator.pools import document


def said(*, generation: int = 1, budget: str = "True", config: str = "True") -> dict[str, Any]:
    conditions = [("ConfigValid", config), ("BudgetAdmitted", budget)]
    told = [{"type": kind, "status": value, "observedGeneration": generation} for kind, value in conditions]
    return {"conditions": told}


def budget(found: InForce) -> int:
    return found.pool.spec.prefix_cache.budget_mib


def edited(status: Any, budget: int = 9999) -> dict[str, Any]:
    return {**document({"prefixCache": {"budgetMiB": budget}}, generation=2), "status": status}


def test_a_spec_that_was_not_admitted_yet_is_not_in_force() -> None:
    found = in_force(edited({"admitted": admission(document())}))
    assert (budget(found), found.pool.metadata.generation, found.admitted) == (512, 1, True)


def test_the_admitted_spec_is_read_where_the_present_one_cannot_be() -> None:
    broken = {**document({"engine": {"x": 1}}, generation=2), "status": {"admitted": admission(document())}}
    assert budget(in_force(broken)) == 512


def test_the_present_spec_is_read_whole_once_it_is_admitted() -> None:
    template = {"spec": {"nodeSelector": {"a": "b"}}}
    given = document({"podTemplate": template, "engine": {"env": [{"name": "A", "value": "secret"}]}})
    copy = admission(given)
    found = in_force({**given, "status": {"admitted": copy}})
    assert found.pool.spec.pod_template == template
    assert "podTemplate" not in copy["spec"]
    assert "secret" not in str(copy)


def test_without_a_copy_conditions_of_an_older_operator_say_whether_it_is_admitted() -> None:
    assert in_force(edited(said(generation=2))).admitted
    assert not in_force(edited(said(generation=2, budget="False"))).admitted
    assert not in_force(edited(said(generation=2, config="False"))).admitted
    assert not in_force(edited(said(generation=1))).admitted
    assert in_force(edited(said(generation=2, budget="Unknown"))).admitted


@pytest.mark.parametrize("status", [None, {}, "lost", {"admitted": "lost"}, {"admitted": {"uid": "uid-1"}}, said()])
def test_a_status_that_was_lost_admits_nothing_and_loses_no_pool(status: Any) -> None:
    found = in_force(edited(status))
    assert (found.pool.key, found.admitted) == ("serving/demo", False)


def test_a_copy_of_another_pool_of_that_name_is_not_followed() -> None:
    assert not in_force(edited({"admitted": admission(document(uid="uid-0"))})).admitted


def test_a_copy_that_cannot_be_read_here_is_not_followed() -> None:
    copy = deepcopy(admission(document()))
    copy["spec"]["ofANewerVersion"] = 1
    assert in_force(edited({"admitted": copy})).admitted is False
    with pytest.raises(PoolError):
        in_force({**document({"engine": {"x": 1}}, generation=2), "status": {"admitted": copy}})


def test_long_prefixes_are_not_copied() -> None:
    def prefixes(size: int) -> dict[str, Any]:
        return {"name": "a", "messages": [{"role": "system", "content": "x" * size}]}

    short = admission(document({"prefixCache": {"warmPrefixes": [prefixes(1000)]}}))
    assert short["spec"]["prefixCache"]["warmPrefixes"]
    long = admission(document({"prefixCache": {"warmPrefixes": [prefixes(COPIED_PREFIX_BYTES)]}}))
    assert long["spec"]["prefixCache"] == {"budgetMiB": 512}
    assert last_admitted({**document(), "status": {"admitted": long}}) is not None
