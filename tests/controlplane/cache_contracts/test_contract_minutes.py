"""Whether a contract was met in a minute, and for how much of a time: pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_controlplane.cache_contracts.contract_minutes import (
    MONTH_HOURS,
    ContractMinutes,
    Miss,
    Tokens,
    judge,
)
from cachefleet_controlplane.cache_contracts.contract_report import contract_state
from cachefleet_controlplane.history.cache_history import Answered
from cachefleet_controlplane.routing.lost_tokens import LostCause
from cachefleet_core.pool.policy import CacheContract, HitObjective

PLAIN = CacheContract(tenant="acme", share=0.5, retention_seconds=60)
HITS = CacheContract(
    tenant="acme", share=0.5, hit_objective=HitObjective(ratio=0.8, window_seconds=120, min_tokens=100)
)
START = 1_000_020


def answers(prompt: int, served: int, **lost: int) -> Answered:
    named = {LostCause(cause): tokens for cause, tokens in lost.items()}
    return Answered(requests=1, prompt_tokens=prompt, served_tokens=served, lost=named)


@pytest.mark.parametrize(
    ("contract", "prompt", "served", "what", "misses"),
    [
        pytest.param(PLAIN, 1000, 0, {}, (), id="no objective"),
        pytest.param(HITS, 0, 0, {}, (), id="nothing asked"),
        pytest.param(HITS, 99, 0, {}, (), id="too little asked to judge by"),
        pytest.param(HITS, 100, 80, {}, (), id="just met"),
        pytest.param(HITS, 100, 79, {}, (Miss.HIT_OBJECTIVE,), id="below"),
        pytest.param(PLAIN, 0, 0, {"evicted": 1}, (Miss.EVICTED,), id="evicted"),
        pytest.param(PLAIN, 0, 0, {"enforced": False}, (Miss.NOT_ENFORCED,), id="not enforced"),
        pytest.param(HITS, 100, 0, {"evicted": 9, "enforced": False}, tuple(Miss), id="all"),
    ],
)
def test_a_minute_is_judged_by_the_table(
    contract: CacheContract, prompt: int, served: int, what: dict[str, Any], misses: tuple[Miss, ...]
) -> None:
    assert judge(contract, Tokens(prompt, served), **({"evicted": 0, "enforced": True} | what)) == misses


def test_the_objective_is_judged_over_its_window() -> None:
    minutes = ContractMinutes(START)
    minutes.answered(answers(1000, 0, evicted=700, first_seen=300))
    minutes.end(START + 1, HITS, enforced=True)
    shown = contract_state("ns/p", HITS, minutes, 5)
    assert (shown.met, shown.reasons, shown.hit_ratio, shown.prompt_tokens) == (False, ("hit_objective",), 0.0, 1000)
    assert (shown.lost_cause, shown.lost_tokens, shown.idle_blocks) == ("evicted", 700, 5)
    minutes.answered(answers(9000, 9000))
    minutes.end(START + 2, HITS, enforced=True)
    shown = contract_state("ns/p", HITS, minutes, 5)
    assert (shown.met, shown.reasons, shown.hit_ratio) == (True, (), 0.9)
    minutes.end(START + 3, HITS, enforced=True)
    assert contract_state("ns/p", HITS, minutes, 5).hit_ratio == 1.0


def test_a_clock_that_is_set_back_counts_on() -> None:
    minutes = ContractMinutes(START + 600)
    minutes.answered(answers(1000, 0))
    minutes.end(START + 601, HITS, enforced=True)
    minutes.set_back(START)
    minutes.answered(answers(1000, 900))
    minutes.end(START + 1, HITS, enforced=True)
    assert (minutes.last, minutes.window(HITS).prompt, minutes.hour().minutes) == ((), 1000, 1)


def test_a_minute_without_a_worker_is_not_judged() -> None:
    minutes = ContractMinutes(START)
    minutes.end(START + 1, PLAIN, enforced=None)
    assert (minutes.last, minutes.total.minutes) == (None, 0)
    shown = contract_state("ns/p", PLAIN, minutes, 0)
    assert (shown.met, shown.hour.met, shown.lost_cause) == (None, None, "")


def test_windows_forget_and_a_month_is_bounded() -> None:
    minutes, end = ContractMinutes(0), 33 * 24 * 60
    for minute in range(0, end, 7):
        minutes.evict(1 if minute < end // 2 else 0)
        minutes.end(minute + 7, PLAIN, enforced=True)
    assert minutes.hour().minutes == 60 // 7
    assert 24 * 60 // 7 - 9 <= minutes.day().minutes <= 24 * 60 // 7 + 1
    assert minutes.day().met == minutes.day().minutes
    month = minutes.month()
    assert MONTH_HOURS * 60 // 7 - 9 <= month.minutes <= MONTH_HOURS * 60 // 7 + 1
    assert 0 < month.misses[Miss.EVICTED] == month.minutes - month.met == month.evicted
    assert len(minutes.judged._hours) <= MONTH_HOURS + 1


@given(
    events=st.lists(
        st.tuples(st.integers(1, 90), st.sampled_from([True, False, None]), st.integers(0, 2), st.integers(0, 200)),
        max_size=40,
    )
)
def test_what_is_told_adds_up(events: list[tuple[int, bool | None, int, int]]) -> None:
    minutes, at, judged, evicted = ContractMinutes(START), START, Counter[bool](), 0
    for gap, enforced, blocks, tokens in events:
        minutes.evict(blocks)
        minutes.answered(answers(200, tokens))
        at += gap
        minutes.end(at, HITS, enforced=enforced)
        if enforced is not None:
            judged[minutes.last == ()] += 1
            evicted += blocks
    total = minutes.total
    assert (total.minutes, total.met, total.evicted) == (judged.total(), judged[True], evicted)
    assert max(total.misses.values(), default=0) <= total.minutes - total.met <= total.misses.total()
    assert minutes.hour().minutes <= minutes.day().minutes <= minutes.month().minutes <= total.minutes
