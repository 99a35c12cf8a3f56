"""Tenants' shares and kept blocks on vLLM's real block pool, for models with one group and with several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachefleet_core.report_fields import HeldBlocks, SaltShare
from cachefleet_core.tenancy import salt_digest
from cachefleet_worker.plugin.live_policy import Shares
from tests.worker.plugin import loaded
from tests.worker.plugin.loaded import BLOCK, BLOCKS_PER_MIB, prompt

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

Engine = Any
HYBRID = ("full", "sliding")


def blocks(engine: Engine, name: int, size: int, salt: str) -> int:
    """How many blocks of a prompt of a tenant are cached."""
    return int(engine.hit(prompt(name, size), salt)) // BLOCK


def test_over_its_share_a_tenant_evicts_its_own_oldest_blocks() -> None:
    engine = loaded.engine("full")
    engine.bound(4, cache_share=0.5)
    engine.run(prompt(0, 8), salt="quiet")
    for name in range(1, 6):
        engine.run(prompt(name, 4), salt="busy")
        engine.check()
    assert blocks(engine, 0, 8, "quiet") == 8
    assert [blocks(engine, name, 4, "busy") for name in range(1, 6)] == [0, 0, 0, 4, 4]


def test_a_tenant_has_a_share_of_its_own_and_the_stats_say_what_each_has() -> None:
    engine = loaded.engine("full")
    own = SaltShare(salt=salt_digest("small"), share=0.25)
    engine.bound(4, cache_share=0.75, tenant_shares=(own,))
    for name in range(4):
        engine.run(prompt(name, 4), salt="small")
    engine.run(prompt(9, 10), salt="large")
    engine.check()
    assert engine.budget.reading()["idle_by_salt"] == {salt_digest("large"): 10, salt_digest("small"): 6}
    assert blocks(engine, 9, 10, "large") == 10
    engine.bound(None)
    assert engine.state.policy.shares == Shares()


def test_new_shares_are_in_force_without_a_restart() -> None:
    engine = loaded.engine("full")
    engine.bound(2)
    engine.run(prompt(0, 4), salt="a")
    engine.run(prompt(1, 4), salt="b")
    engine.bound(2, cache_share=0.5)
    engine.run(prompt(2, 4), salt="b")
    assert [blocks(engine, 0, 4, "a"), blocks(engine, 1, 4, "b"), blocks(engine, 2, 4, "b")] == [4, 0, 4]


def test_what_is_asked_to_be_kept_goes_last() -> None:
    engine = loaded.engine("full")
    engine.bound(2, keep_share=0.5)
    engine.run(prompt(0, 4), salt="a", keep=300)
    for name in range(1, 5):
        engine.run(prompt(name, 4), salt="b")
        engine.check()
    assert blocks(engine, 0, 4, "a") == 4
    engine.bound(2)
    engine.run(prompt(5, 4), salt="b")
    engine.run(prompt(6, 4), salt="b")
    assert blocks(engine, 0, 4, "a") == 0


def test_new_work_takes_from_those_over_their_shares_too() -> None:
    engine = loaded.engine("full", blocks=17)
    engine.bound(4, cache_share=0.5)
    engine.run(prompt(0, 4), salt="quiet")
    engine.run(prompt(1, 12), salt="busy")
    request = engine.start(prompt(2, 4), salt="third")
    assert request is not None
    assert [blocks(engine, 0, 4, "quiet"), blocks(engine, 1, 12, "busy")] == [4, 8]
    engine.check()


def test_in_chains_over_its_share_a_tenant_evicts_its_own() -> None:
    engine = loaded.engine(*HYBRID, blocks=400)
    engine.bound(10, cache_share=0.5)
    engine.run(prompt(0, 8), salt="quiet")
    for name in range(1, 9):
        engine.run(prompt(name, 8), salt="busy")
        engine.check()
    assert blocks(engine, 0, 8, "quiet") == 8
    assert blocks(engine, 8, 8, "busy") == 8
    told = engine.budget.reading()["idle_by_salt"]
    assert sum(told.values()) == engine.budget.idle
    assert set(told) == {salt_digest("busy"), salt_digest("quiet")}


def test_in_chains_what_is_asked_to_be_kept_goes_last() -> None:
    engine = loaded.engine(*HYBRID, blocks=400)
    engine.bound(10, keep_share=0.5)
    engine.run(prompt(0, 8), salt="a", keep=3600)
    for name in range(1, 9):
        engine.run(prompt(name, 8), salt="b")
        engine.check()
    assert [blocks(engine, 0, 8, "a"), blocks(engine, 8, 8, "b")] == [8, 8]


@pytest.mark.parametrize("kinds", [("full",), HYBRID], ids="+".join)
def test_a_contract_survives_a_flood_but_not_running_requests(kinds: tuple[str, ...]) -> None:
    engine = loaded.engine(*kinds, blocks=400)
    own = SaltShare(salt=salt_digest("promised"), share=0.5, guaranteed=True, retention_seconds=3600)
    engine.bound(10, tenant_shares=(own,))
    engine.run(prompt(0, 8), salt="promised")
    for name in range(1, 12):
        engine.run(prompt(name, 12), salt="flood")
        engine.check()
    assert blocks(engine, 0, 8, "promised") == 8
    told = engine.budget.reading()["held_by_salt"]
    assert told == {salt_digest("promised"): HeldBlocks(8 * len(kinds), 0)}
    while engine.start(prompt(100 + engine.budget.idle, 8), salt="running") is not None:
        engine.check()
    held = engine.budget.reading()["held_by_salt"][salt_digest("promised")]
    assert held.evicted > 0
    assert (held.idle, held.idle + held.evicted) == (engine.budget.idle, 8 * len(kinds)), "the flood's have all gone"


REQUESTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(1, 6), st.sampled_from([0, 0, 300])),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("kinds", [("full",), HYBRID], ids="+".join)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests=REQUESTS, share=st.sampled_from([0.25, 0.34, 0.5]), kept=st.sampled_from([0.0, 0.5]))
def test_within_its_share_nobody_loses_to_one_over_its_own(
    kinds: tuple[str, ...], requests: list[Any], share: float, kept: float
) -> None:
    engine = loaded.engine(*kinds, blocks=400)
    engine.bound(3 * len(kinds), cache_share=share, keep_share=kept)
    cap = int(share * 3 * len(kinds) * BLOCKS_PER_MIB)
    for salt, name, size, keep in requests:
        before = engine.budget._watch.order.owners()
        engine.run(prompt(name, size), salt=salt, keep=keep)
        engine.check()
        after = engine.budget._watch.order.owners()
        assert sum(after.values()) == engine.budget.idle
        for other, count in before.items():
            lost = count - after.get(other, 0)
            if other != salt_digest(salt) and lost and count <= cap:
                assert all(one <= cap for owner, one in after.items() if owner in before)
        fits = before.get(salt_digest(salt), 0) + size * len(kinds) <= cap
        assert not fits or engine.hit(prompt(name, size), salt) == size * BLOCK
