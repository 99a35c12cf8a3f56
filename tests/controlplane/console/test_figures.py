"""What is drawn adds up: bars, time lines, and what became of a prompt's tokens."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.console.figures.bar_parts import WHOLE, stacked
from cachefleet_controlplane.console.figures.candidate_bars import candidate_bars
from cachefleet_controlplane.console.figures.request_legs import time_line
from cachefleet_controlplane.console.figures.token_split import from_cache, token_split
from cachefleet_controlplane.routing.worth import Worth
from cachefleet_controlplane.store.decision_records import AttemptRecord, ShortfallRecord
from tests.controlplane.console.test_pages import record
from tests.controlplane.store.conftest import CANDIDATE
from tests.reference.cost import cost_of
from tests.reference.throughput import Throughput


def shown(**changes: Any) -> dict[str, Any]:
    """A decision as the admin API shows it."""
    return decision_presenters.decision(record(**changes)).model_dump(mode="json", by_alias=True)


@given(st.lists(st.tuples(st.just("k"), st.just("l"), st.floats(0, 1e6))), st.floats(0, 1e6))
def test_parts_stay_within_their_bar(values: list[tuple[str, str, float]], whole: float) -> None:
    parts = stacked(values, whole)
    assert all(0 <= part.start <= WHOLE for part in parts)
    assert all(part.start + part.size <= WHOLE + 0.02 for part in parts)


tokens = st.integers(0, 4096)


@given(prompt=tokens, cached=st.none() | tokens, predicted=tokens, lost=tokens, matched=tokens)
def test_shares_add_up_to_the_prompt(prompt: int, cached: int | None, predicted: int, lost: int, matched: int) -> None:
    short = ShortfallRecord("stale", lost, "demo-0") if lost else None
    others = (replace(CANDIDATE, chosen=True), replace(CANDIDATE, matched_tokens=matched))
    item = shown(
        prompt_tokens=prompt, cached_tokens=cached, predicted_tokens=predicted, shortfall=short, candidates=others
    )
    split = token_split(item)
    if cached is None:
        assert split is None
        return
    assert split
    assert sum(one.tokens for one in split.shares) == split.prompt_tokens == max(prompt, cached)
    assert all(one.tokens > 0 for one in split.shares)
    assert split.computed == max(0, prompt - cached)


def test_tokens_that_another_worker_held() -> None:
    others = (replace(CANDIDATE, chosen=True, matched_tokens=512), replace(CANDIDATE, worker="w1", matched_tokens=2048))
    split = token_split(shown(shortfall=None, predicted_tokens=512, candidates=others, reason="load_over_prefix"))
    assert split
    assert [(one.kind, one.tokens) for one in split.shares] == [("served", 512), ("elsewhere", 1536), ("nowhere", 464)]
    assert "w1 held 2,048 tokens, and was not chosen: Another worker holds more" in split.shares[1].words


def test_a_request_with_an_account_of_its_own_shows_that() -> None:
    lost = (("evicted", 1000), ("held_elsewhere", 512), ("first_seen", 488))
    causes = [{"cause": cause, "tokens": tokens, "why": f"{cause}!"} for cause, tokens in lost]
    split = token_split(shown() | {"lost": causes})
    assert split
    assert [(one.kind, one.tokens) for one in split.shares] == [
        ("served", 512),
        ("lost", 1000),
        ("elsewhere", 512),
        ("nowhere", 488),
    ]
    assert (split.shares[1].title, split.shares[1].words) == ("evicted", "evicted!")


def test_what_a_prefill_worker_brought_over_is_not_from_cache() -> None:
    attempts = (AttemptRecord("p", "finished", 200, 0.1, "prefill"), AttemptRecord("d", "finished", 200, 0.1))
    lost = [{"cause": "first_seen", "tokens": 2000, "why": "new"}]
    item = shown(attempts=attempts, cached_tokens=2511) | {"lost": lost}
    split = token_split(item)
    assert split
    assert from_cache(item) == split.served
    assert [(one.kind, one.tokens) for one in split.shares] == [("served", 512), ("nowhere", 2000)]
    assert "Prefill worker" in split.shares[0].words
    assert (split.served, split.computed) == (512, 2000)


def test_without_block_keys_nobody_can_tell() -> None:
    split = token_split(shown(shortfall=None, knowledge="load", candidates=()))
    assert split
    assert "nobody can tell" in split.shares[-1].words


@pytest.mark.parametrize(("waiting", "uncached", "evicted"), [(0, 36, 0), (5000, 800, 0), (100, 3000, 2000)])
def test_a_candidates_parts_are_the_terms_of_its_cost(waiting: int, uncached: int, evicted: int) -> None:
    throughput = Throughput(1000.0, 0.02, 2048)
    cost = cost_of(waiting, uncached, evicted, throughput=throughput, worth=Worth(0.5, 0.1, 0.2))
    candidate = replace(
        CANDIDATE,
        queued_tokens=waiting,
        uncached_tokens=uncached,
        evicted_tokens=evicted,
        others_seconds=cost.others,
        paid_seconds=cost.paid,
        seconds=cost.seconds,
    )
    (bar,) = candidate_bars(shown(candidates=(candidate,))["candidates"])
    parts = {part.kind: part.value for part in bar.parts}
    assert sum(parts.values()) == pytest.approx(cost.seconds + cost.paid)
    assert parts.get("wait", 0.0) == pytest.approx(throughput.seconds(waiting))
    assert parts.get("evict", 0.0) == pytest.approx(0.5 * evicted / 1000.0)


def test_loading_from_below_the_device_is_no_eviction() -> None:
    throughput = Throughput(1000.0, 0.02, 2048, loaded_per_second=10_000.0)
    cost = cost_of(0, 100, 0, throughput=throughput, worth=Worth(0.5, 0.1, 0.2), loaded=4000)
    loading = replace(
        CANDIDATE,
        queued_tokens=0,
        inflight_tokens=0,
        uncached_tokens=100,
        others_seconds=cost.others,
        paid_seconds=cost.paid,
        loaded_tokens=4000,
        loading_seconds=cost.loading,
        tokens_per_second=1000.0,
        inter_token_seconds=0.02,
        batched_tokens=2048,
        seconds=cost.seconds,
    )
    (bar,) = candidate_bars(shown(candidates=(loading,))["candidates"])
    parts = {part.kind: part.value for part in bar.parts}
    assert (parts["load"], "evict" in parts) == (0.4, False)
    adapted = replace(loading, adapter_seconds=0.05, seconds=cost.seconds + 0.05)
    (bar,) = candidate_bars(shown(candidates=(adapted,))["candidates"])
    parts = {part.kind: part.value for part in bar.parts}
    assert parts["load"] == pytest.approx(0.45)
    assert "evict" not in parts


def test_the_dearest_candidate_fills_its_bar() -> None:
    dear = replace(CANDIDATE, worker="default/demo/demo-1#0", uncached_tokens=360)
    bars = candidate_bars(shown(candidates=(CANDIDATE, dear))["candidates"])
    assert [bar.name for bar in bars] == ["demo-0", "demo-1"]
    widths = [sum(part.size for part in bar.parts) for bar in bars]
    assert widths[1] == pytest.approx(WHOLE, abs=0.1)
    assert widths[0] < widths[1]


def test_legs_are_one_behind_the_other() -> None:
    attempts = (AttemptRecord("demo-1", "unreachable", None, 0.1), AttemptRecord("demo-0", "finished", 200, 0.8))
    line = time_line(shown(attempts=attempts, queued_seconds=0.1, ttft_seconds=0.5))
    assert line.seconds == pytest.approx(1.0)
    assert [(leg.kind, leg.start, leg.size) for leg in line.legs] == [
        ("wait", 0.0, 10.0),
        ("lost", 10.0, 10.0),
        ("served", 20.0, 80.0),
    ]
    assert line.first_token == pytest.approx(50.0)
    assert time_line(shown(attempts=(), queued_seconds=None, ttft_seconds=None)).legs == ()
