"""All bodies together stay within the budget, and no tenant takes it from the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.gateway.body_budget import BodyBudget, BodyShare
from cachefleet_controlplane.wire.errors import ApiError

LIMIT = 1000
pieces = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 400)), max_size=60)


def _took(budget: BodyBudget, tenant: str, size: int) -> bool:
    try:
        budget.take(tenant, size)
    except ApiError:
        return False
    return True


@given(pieces)
def test_the_budget_holds_and_all_comes_back(wanted: list[tuple[str, int]]) -> None:
    budget = BodyBudget(LIMIT)
    held = [(tenant, size) for tenant, size in wanted if _took(budget, tenant, size)]
    assert budget.held == sum(size for _, size in held) <= LIMIT
    for tenant, size in held:
        budget.give_back(tenant, size)
    assert budget.held == 0
    assert _took(budget, "a", LIMIT // 2)


@given(st.integers(1, 6))
def test_greedy_tenants_leave_as_much_to_the_next(tenants: int) -> None:
    budget = BodyBudget(LIMIT)
    greedy = [str(tenant) for tenant in range(tenants)]
    for _ in range(LIMIT):
        for tenant in greedy:
            _took(budget, tenant, 1)
    assert budget.held <= LIMIT * tenants / (tenants + 1)
    assert _took(budget, "next", LIMIT // (2 * tenants + 2))


def test_a_share_gives_back_what_it_took_however_it_ends() -> None:
    budget = BodyBudget(LIMIT)
    share = BodyShare(budget, "a")
    with pytest.raises(ApiError) as refused, share:
        _taken(share, 400, 200)
    assert refused.value.status == 503
    assert budget.held == 0


def _taken(share: BodyShare, *sizes: int) -> None:
    for size in sizes:
        share.take(size)
