from __future__ import annotations

import io

import pytest
from rich.console import Console

from cachefleet_local.demo.engines import CACHED_TOKENS, PROMPT_TOKENS, total
from cachefleet_local.demo.report import Answer, EngineCounts, Phase, objections, percentile, recomputed_share, table


def phase(policy: str = "cacheAware", *, cached: int = 80, counted: int | None = None, failure: str = "") -> Phase:
    answers = [
        Answer(0, "", 100, cached, 0.010, "demo-0", "exact", "d0"),
        Answer(1, failure, 100, 0, 0.030, "demo-1", "load", "d1"),
    ]
    served = [answer for answer in answers if not answer.failure]
    engines = EngineCounts(
        sum(answer.prompt_tokens for answer in served),
        sum(a.cached_tokens for a in served) if counted is None else counted,
    )
    return Phase(policy, answers, {"d0": 90, "d1": 0}, engines, 1.0)


def test_sums_are_of_the_answers() -> None:
    result = phase()
    assert (result.prompt_tokens, result.cached_tokens, result.recomputed_tokens) == (200, 80, 120)
    assert (result.predicted_tokens, result.overpredicted_tokens) == (90, 10)
    assert result.hit_ratio == 0.4
    assert result.knowledge == {"exact": 1, "load": 1}


def test_json_has_what_others_read() -> None:
    found = phase().as_json()
    assert {
        "requests": 2,
        "prompt_tokens": 200,
        "cached_tokens": 80,
        "predicted_tokens": 90,
        "ttft_p50_seconds": 0.01,
        "ttft_p95_seconds": 0.03,
    }.items() <= found.items()


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (95, 4.0), (100, 4.0), (1, 1.0)])
def test_percentiles_are_by_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected
    assert percentile([], percent) == 0.0


def test_a_good_run_has_no_objection() -> None:
    worse, better = phase("roundRobin", cached=0), phase(cached=80)
    assert recomputed_share(worse, better) == 0.6
    assert objections(worse, better) == []


def test_recomputing_too_much_is_an_objection_with_both_figures() -> None:
    (line,) = objections(phase("roundRobin", cached=0), phase(cached=40))
    assert line == "cache-aware routing recomputed 0.80 of what round robin did; the goal is 0.65"


def test_a_run_without_any_recomputing_proves_nothing() -> None:
    empty = Phase("roundRobin", [], {}, EngineCounts(0, 0), 1.0)
    assert recomputed_share(empty, empty) == 1.0


def test_engines_that_count_otherwise_are_an_objection() -> None:
    (line,) = objections(phase("roundRobin", cached=0), phase(cached=80, counted=70))
    assert line == "cacheAware: the answers say 80 cached tokens, the engines' counters 70"


def test_a_failed_request_is_an_objection_and_counts_nowhere_else() -> None:
    broken = phase("roundRobin", cached=0, failure="status 503")
    assert broken.prompt_tokens == 100
    assert objections(broken, phase(cached=80))[0] == "roundRobin: request 1 failed: status 503"


def test_the_table_shows_both_sides() -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(table(phase("roundRobin", cached=0), phase(cached=80)))
    (line,) = [line for line in out.getvalue().splitlines() if "tokens recomputed" in line]
    assert line.split("│")[2:4] == ["         200 ", "         120 "]


def test_counters_are_summed_over_their_samples() -> None:
    lines = (
        f"# TYPE {PROMPT_TOKENS.removesuffix('_total')} counter",
        f'{PROMPT_TOKENS}{{engine="0",model_name="a}} b"}} 12.0',
        f'{PROMPT_TOKENS}{{engine="1"}} 3.0',
        f"# TYPE {CACHED_TOKENS.removesuffix('_total')} counter",
        f"{CACHED_TOKENS} 1e3",
    )
    text = "\n".join(lines) + "\n"
    assert (total(text, PROMPT_TOKENS), total(text, CACHED_TOKENS), total(text, "other")) == (15, 1000, 0)
