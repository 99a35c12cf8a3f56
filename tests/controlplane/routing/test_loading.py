"""Blocks below the device: loaded instead of computed, and chosen for it where that costs less."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from cachefleet_controlplane.index.worker_id import WorkerId
from cachefleet_controlplane.routing.decision import Decision, Knowledge, Prompt, Reason, RoutingPolicy
from tests.reference.candidate import Candidate
from tests.reference.choice import decide
from tests.reference.throughput import DEFAULT_LOADED_PER_SECOND

SIZE = 16
PROMPT = Prompt(100 * SIZE + 1, b"12345678" * 100, SIZE, 0, Knowledge.EXACT)


def candidate(name: str, *, matched: int = 0, loadable: int = 0, **changes: Any) -> Candidate:
    own: dict[str, Any] = {"tokens_per_second": 1000.0, "inter_token_seconds": 0.01, "report_age": 0.1}
    own |= {"pool": "p", "url": "", "blocks_blank": 1000, "matched_blocks": matched, "loadable_blocks": loadable}
    return Candidate(worker=name, id=WorkerId(name), **(own | changes))


def choose(*candidates: Candidate) -> Decision:
    return decide(PROMPT, candidates, RoutingPolicy.CACHE_AWARE, 0.0)


def test_what_can_be_loaded_is_not_computed_and_costs_its_loading() -> None:
    decision = choose(candidate("cold"), candidate("below", matched=20, loadable=60))
    score = decision.scores[1]
    assert (decision.worker, decision.reason) == ("below", Reason.LONGEST_PREFIX)
    assert (decision.predicted_tokens, decision.loaded_tokens) == (80 * SIZE, 60 * SIZE)
    assert (score.uncached_tokens, score.loaded_tokens) == (20 * SIZE + 1, 60 * SIZE)
    assert score.loading_seconds == 60 * SIZE / DEFAULT_LOADED_PER_SECOND
    alone = choose(candidate("device", matched=80)).scores[0]
    assert score.seconds == alone.seconds + score.loading_seconds


def test_among_equals_the_device_s_blocks_win() -> None:
    rate = DEFAULT_LOADED_PER_SECOND
    assert 80 * SIZE / rate > 0.05 * choose(candidate("a", matched=80)).scores[0].seconds  # no tie
    assert choose(candidate("a", loadable=80), candidate("b", matched=80)).worker == "b"


def test_loaded_blocks_take_room_as_computed_ones_do() -> None:
    below, none = (choose(candidate("a", loadable=more, blocks_blank=10)).scores[0] for more in (80, 0))
    assert below.evicted_tokens == none.evicted_tokens > 0


def test_a_stale_report_says_nothing_of_what_can_be_loaded() -> None:
    stale = candidate("a", matched=5, loadable=80, report_age=None)
    assert choose(stale, candidate("b")).scores[0].loaded_tokens == 0


def test_how_fast_a_worker_loads_is_what_its_pool_has_measured() -> None:
    """As with prefill: the median, unless its own measurement is far off; else that of all; else a constant."""
    rates = {"a": 10_000.0, "b": 12_000.0, "c": 14_000.0, "slow": 500.0, "new": None}
    views = [candidate(name, loadable=80, loaded_per_second=rate) for name, rate in rates.items()]
    views.append(candidate("other pool", loadable=80, pool="q"))
    scores = choose(*views).scores
    used = {score.worker: round(score.loaded_tokens / score.loading_seconds) for score in scores}
    usual = 11_000
    assert used == {"a": usual, "b": usual, "c": usual, "slow": 500, "new": usual, "other pool": usual}
    assert all(score.loading_measured for score in scores)
    (assumed,) = choose(candidate("a", loadable=80)).scores
    assert (assumed.loaded_tokens / assumed.loading_seconds, assumed.loading_measured) == (
        DEFAULT_LOADED_PER_SECOND,
        False,
    )


def test_a_worker_that_loads_slowly_is_passed_over() -> None:
    views = [candidate("a", loadable=80), candidate("b")]
    assert choose(*views).worker == "a"
    views[0] = replace(views[0], loaded_per_second=500.0)
    assert choose(*views).worker == "b"
