"""What a request costs on one worker: the formula, and what others lose by it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.routing.worth import UNLEARNT, Worth
from tests.reference.cost import MOST_BUSY, cost_of, delays
from tests.reference.throughput import Throughput

FAST = Throughput(1000.0, 0.01, 2048)
KNOWN = Worth(eviction=0.1, requests_per_second=0.5, computed_per_second=400.0, request_tokens=600.0)
tokens = st.integers(0, 100_000)
worths = st.builds(
    Worth,
    eviction=st.floats(0, 1),
    requests_per_second=st.floats(0, 100),
    computed_per_second=st.floats(0, 1e5),
    request_tokens=st.floats(0, 1e5),
)


def test_is_the_formula() -> None:
    cost = cost_of(3000, 500, 80, throughput=FAST, worth=KNOWN)

    before, own = 3.0 + 0.01 * 2, 3.5 + 0.01 * 2
    token = 1 / 1000 + 0.01 / 2048
    busy = 400 * token
    delayed, standing = 0.5 / (1 - busy), busy / 2 * 600 * token
    others = delayed * (standing + before + (own - before) / 2)
    lost = 0.1 * 80 / 1000
    assert cost.seconds == pytest.approx(own + (own - before) * others + lost * (1 + others))
    assert cost.others == pytest.approx((own - before + lost) * others)
    assert cost.paid == 0


@given(tokens, tokens, tokens)
def test_nothing_learnt_is_an_evicted_token_for_one_to_compute(waiting: int, uncached: int, evicted: int) -> None:
    cost = cost_of(waiting, uncached, evicted, throughput=FAST, worth=UNLEARNT)
    work = waiting + uncached
    assert cost.seconds == work / 1000.0 + 0.01 * math.ceil(work / 2048) + evicted / 1000.0
    assert (cost.others, cost.paid) == (0, 0)


@given(tokens, tokens, tokens, worths, st.floats(0, 1e4))
def test_waiting_pays_for_what_others_lose_and_for_no_more(
    waiting: int, uncached: int, evicted: int, worth: Worth, paid: float
) -> None:
    full = cost_of(waiting, uncached, evicted, throughput=FAST, worth=worth)
    less = cost_of(waiting, uncached, evicted, throughput=FAST, worth=worth, paid=paid)
    own = FAST.seconds(waiting + uncached)
    assert own <= less.seconds <= full.seconds
    assert less.seconds == own or less.seconds == pytest.approx(full.seconds - paid)
    assert less.paid == pytest.approx(full.seconds - less.seconds, abs=1e-6)


@given(tokens, st.integers(0, 1000), st.integers(1, 1000), worths)
def test_work_in_a_longer_queue_delays_more(waiting: int, less: int, more: int, worth: Worth) -> None:
    queues = (waiting + less, waiting + less + more)
    smooth = Throughput(1000.0, 0.0, 2048)
    short, long = (cost_of(each, 500, 0, throughput=smooth, worth=worth) for each in queues)
    assert short.others <= long.others * (1 + 1e-9) + 1e-9


def test_a_pool_that_cannot_keep_up_has_an_end_too() -> None:
    delayed, standing = delays(Worth(1.0, 2.0, 1e9, 100.0), FAST.token_seconds)
    assert delayed == pytest.approx(2.0 / (1 - MOST_BUSY))
    assert standing == pytest.approx(MOST_BUSY / 2 * 100 * FAST.token_seconds)
    assert delays(UNLEARNT, FAST.token_seconds) == (0, 0)


def test_the_docs_example() -> None:
    engine = Throughput(8000.0, 0.02, 2048)
    known = Worth(eviction=0.09, requests_per_second=2.0, computed_per_second=4000.0, request_tokens=4000.0)
    alone = Worth(eviction=0.09)
    costs = {
        worth: (
            cost_of(18_000, 2000, 2000, throughput=engine, worth=worth).seconds,
            cost_of(4000, 8000, 8000, throughput=engine, worth=worth).seconds,
        )
        for worth in (known, alone, UNLEARNT)
    }
    assert costs[known] == pytest.approx((6.16, 7.93), abs=0.005)
    assert costs[alone] == pytest.approx((2.72, 1.71), abs=0.005)
    assert costs[UNLEARNT] == pytest.approx((2.95, 2.62), abs=0.005)
    later = cost_of(20_000, 2000, 2000, throughput=engine, worth=known).seconds
    waited = engine.seconds(18_000) - engine.seconds(4000)
    copy = cost_of(4000, 8000, 8000, throughput=engine, worth=known, paid=waited).seconds
    assert (waited, later, copy) == pytest.approx((1.89, 6.77, 6.04), abs=0.005)
    told = (Path(__file__).parents[3] / "docs" / "decisions.md").read_text(encoding="utf-8")
    assert "**6.16 s** | **7.93 s**" in told
    assert "2.72 s and 1.71 s" in told
    assert "at 6.77 s by then, and B at 7.93 - 1.89 = 6.04 s" in " ".join(told.split())


@given(st.tuples(tokens, tokens, tokens), worths, st.floats(0, 10), tokens)
def test_loading_is_added_to_what_the_rest_costs(
    work: tuple[int, int, int], worth: Worth, paid: float, loaded: int
) -> None:
    plain = cost_of(*work, throughput=FAST, worth=worth, paid=paid)
    cost = cost_of(*work, throughput=FAST, worth=worth, paid=paid, loaded=loaded)
    assert cost.loading == loaded / FAST.loaded_per_second
    assert (cost.seconds, cost.others, cost.paid) == (plain.seconds + cost.loading, plain.others, plain.paid)
    assert plain.loading == 0.0
