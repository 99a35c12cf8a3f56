"""What a flooding tenant does to others in virtual time: by arrival all, by shares little."""

from __future__ import annotations

import pytest

from bench.fairness import AHEAD, ARRIVAL, DEMANDS, FLEET, NOISY, SHARE, SHARES, Figures, played, tenants_work, verdicts
from bench.fairness_run import FairnessRun, Order
from bench.fairness_time import Part
from bench.replay_work import BLOCK

SECONDS = 20.0
"""Of which the last ten count."""


def run(demand: str, order: Order) -> Figures:
    return played(tenants_work(DEMANDS[False][demand], seconds=SECONDS, cached=False), order)


@pytest.mark.timeout(600)
def test_a_flood_moves_others_by_its_shares_and_not_by_what_it_asks_for() -> None:
    """By shares alone others wait behind what was sent ahead to engines; a bound on that has them come sooner."""
    by_arrival, shares, ahead = (run("flooding", order) for order in (ARRIVAL, SHARES, AHEAD))
    assert by_arrival.refused > 0
    assert shares.refused == ahead.refused == 0 < ahead.noisy_refused
    assert ahead.tokens_per_second > 0.9 * shares.tokens_per_second
    assert by_arrival.first_p99 > shares.first_p99 > 2 * ahead.first_p99
    assert ahead.answer_p99 < 1.2 * run(SHARE, AHEAD).answer_p99


def test_what_a_tenant_asks_for_does_not_depend_on_others() -> None:
    alone, flooded = (tenants_work(rate, seconds=3.0, cached=True) for rate in (0.0, 60.0))
    quiet = [(one.tenant, one.request.at) for one in flooded if one.tenant.startswith("quiet")]
    start = alone[0].request.at - quiet[0][1]
    assert [at + start for _, at in quiet] == pytest.approx([one.request.at for one in alone])
    assert [tenant for tenant, _ in quiet] == [one.tenant for one in alone]


@pytest.mark.timeout(600)
def test_the_parts_of_a_requests_time_add_up_to_it() -> None:
    work = tenants_work(DEMANDS[True][SHARE], seconds=3.0, cached=True)
    run = FairnessRun(work, FLEET, AHEAD, noisy=NOISY)
    assert run.run().refused == set()
    for one in work:
        time, number = run.times[one.request.number], one.request.number
        for parts, seconds in ((time.first, run.firsts), (time.answer, run.answers)):
            assert sum(took for part, took in parts.items() if part is not Part.RECOMPUTED) == pytest.approx(
                seconds[number]
            )
        prompt = (one.request.tokens - run.result.hits[number] * BLOCK) / FLEET.prefill_tokens_per_second
        assert time.first[Part.OWN] == time.answer[Part.OWN] == pytest.approx(prompt)
    assert any(run.times[one.request.number].answer[Part.NOISY] for one in work if one.tenant != NOISY)


def test_a_setting_meets_the_bar_where_its_worst_ratio_does() -> None:
    rows = [
        {"setting": "a", "bar": "≤ 1.1x", "ratio": 1.2},
        {"setting": "a", "bar": "≤ 1.1x", "ratio": 0.9},
        {"setting": "a", "price": 1.0},
        {"setting": "b", "bar": "≤ 1.1x", "ratio": 1.05},
        {"setting": "b", "price": 0.9},
        {"row": "of no setting", "ratio": 9.0},
    ]
    assert list(verdicts(rows)) == [
        "a misses ≤ 1.1x: 1.20 at worst, with 1.00 of the tokens of shares or more",
        "b meets ≤ 1.1x: 1.05 at worst, with 0.90 of the tokens of shares or more",
    ]
