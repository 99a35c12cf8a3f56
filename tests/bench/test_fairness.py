"""What a flooding tenant does to others in virtual time: by arrival all, by shares little."""

from __future__ import annotations

import pytest

from bench.fairness import AHEAD, ARRIVAL, DEMANDS, SHARES, Figures, played, tenants_work
from bench.fairness_run import Order

SECONDS = 12.0


def run(demand: str, order: Order, *, cached: bool = False) -> Figures:
    return played(tenants_work(DEMANDS[demand], seconds=SECONDS, cached=cached), order)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cached", [False, True], ids=["uncached", "cached"])
def test_who_asks_for_more_than_its_share_moves_others_by_a_tenth_at_most(*, cached: bool) -> None:
    modest, flooded = (run(demand, AHEAD, cached=cached) for demand in ("in its share", "flooding"))
    by_arrival = run("flooding", ARRIVAL, cached=cached)
    assert flooded.refused == 0 < flooded.noisy_refused
    assert flooded.answer_p99 < 1.10 * modest.answer_p99
    assert by_arrival.first_p99 > 5 * flooded.first_p99
    assert by_arrival.refused > 0


@pytest.mark.timeout(600)
def test_shares_alone_do_not_reach_what_waits_in_engines() -> None:
    """Prompts that fit are many seconds of work: a bound on what is sent ahead has others' first tokens come sooner."""
    shares, ahead = run("flooding", SHARES), run("flooding", AHEAD)
    assert shares.refused == ahead.refused == 0
    assert shares.first_p99 > 2 * ahead.first_p99


def test_what_a_tenant_asks_for_does_not_depend_on_others() -> None:
    alone, flooded = (tenants_work(rate, seconds=3.0, cached=True) for rate in (0.0, 60.0))
    quiet = [(one.tenant, one.request.at) for one in flooded if one.tenant.startswith("quiet")]
    start = alone[0].request.at - quiet[0][1]
    assert [at + start for _, at in quiet] == pytest.approx([one.request.at for one in alone])
    assert [tenant for tenant, _ in quiet] == [one.tenant for one in alone]
