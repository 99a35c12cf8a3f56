"""Bars of costs and tokens: nothing is lost or made up, whatever the width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefleet_local.cli.explanation import bars
from cachefleet_local.cli.explanation.explain import explained
from tests.local.cli.explanation.test_explain import example, item

COUNT = st.integers(0, 10**6)


@given(prompt=st.integers(1, 10**6), predicted=COUNT, cached=COUNT)
def test_a_prompts_tokens_are_all_accounted_for(prompt: int, predicted: int, cached: int) -> None:
    cached = min(cached, prompt)
    parts = bars.tokens({"promptTokens": prompt, "predictedTokens": predicted, "cachedTokens": cached})
    assert sum(parts.values()) == prompt
    assert parts[bars.SERVED] + parts[bars.BEYOND] == cached
    assert all(amount >= 0 for amount in parts.values())


def test_what_the_engine_did_not_tell_has_no_bar() -> None:
    assert bars.tokens({"promptTokens": 9, "predictedTokens": 0, "cachedTokens": None}) == {}


def test_what_a_prefill_worker_brought_over_is_no_hit() -> None:
    brought = {"promptTokens": 9, "predictedTokens": 0, "cachedTokens": 8, "attempts": [{"kind": "prefill"}]}
    assert bars.tokens(brought) == {}


def test_a_costs_parts_are_its_sum() -> None:
    for candidate in item(example())["candidates"]:
        parts = bars.costs(candidate)
        assert sum(parts.values()) == candidate["seconds"] or abs(sum(parts.values()) - candidate["seconds"]) < 1e-9
        assert all(amount >= 0 for amount in parts.values())
    chosen, _, busiest = (bars.costs(one) for one in item(example())["candidates"])
    assert max(chosen, key=lambda part: chosen[part]) is bars.PREFILL
    assert max(busiest, key=lambda part: busiest[part]) is bars.WAIT


def test_loading_is_a_part_of_its_own() -> None:
    chosen = item(example())["candidates"][0]
    bare = bars.costs(chosen)
    loads = bars.costs(chosen | {"seconds": chosen["seconds"] + 0.25, "loadingSeconds": 0.25})
    assert loads == {part: pytest.approx(amount) for part, amount in (bare | {bars.LOADING: 0.25}).items()}
    adapter = bars.costs(chosen | {"seconds": chosen["seconds"] + 0.25, "adapterSeconds": 0.25})
    assert adapter == loads


@given(
    seconds=st.floats(0, 100), others=st.floats(0, 10), tokens=st.tuples(COUNT, COUNT, COUNT), rate=st.floats(1, 1e5)
)
def test_whatever_a_policy_counts_the_parts_are_its_cost(
    seconds: float, others: float, tokens: tuple[int, int, int], rate: float
) -> None:
    counts = dict(zip(("queuedTokens", "inflightTokens", "uncachedTokens"), tokens, strict=True))
    speed = {"tokensPerSecond": rate, "interTokenSeconds": 0.02, "batchedTokens": 2048}
    parts = bars.costs({**counts, **speed, "seconds": seconds, "othersSeconds": others})
    assert abs(sum(parts.values()) - seconds) < 1e-6
    assert all(amount >= 0 for amount in parts.values())


def test_a_candidate_without_a_measured_rate_costs_what_it_costs() -> None:
    bare: dict[str, float] = dict.fromkeys(("queuedTokens", "inflightTokens", "uncachedTokens", "tokensPerSecond"), 0.0)
    bare |= {"interTokenSeconds": 0, "batchedTokens": 0, "seconds": 0.0, "othersSeconds": 0.0}
    assert sum(bars.costs(bare).values()) == 0


@given(width=st.integers(1, 300))
def test_bars_follow_the_width(width: int) -> None:
    rows = [("a", "4.0", {bars.WAIT: 1.0, bars.PREFILL: 3.0}), ("worker", "0.2", {bars.WAIT: 0.0, bars.PREFILL: 0.2})]
    first, second, _ = bars.chart(rows, width=width, colour=False)
    room = min(bars.MOST, max(bars.LEAST, width - 6 - 3 - 4))
    assert len(first) - len("a       4.0  ") == room
    assert len(second) <= len(first)
    assert first.count("#") * 3 - 3 <= first.count("=") <= first.count("#") * 3 + 3


def test_colours_are_for_terminals_alone() -> None:
    assert "\x1b[" not in explained(item(example()))
    assert "\x1b[" in explained(item(example()), colour=True)
