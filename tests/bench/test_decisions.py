"""The benchmark of decisions: what is timed has chosen the same workers before."""

import itertools

import pytest

pytest.importorskip("cachefleet_native")

from bench import decisions


def test_each_number_of_workers_has_a_row_for_each_way_to_know_a_prompt() -> None:
    found = list(decisions.rows((1, 3), rounds=1))
    assert [one["row"] for one in found] == [
        f"{workers} workers, by {known}" for known in ("text", "blocks") for workers in (1, 3)
    ]
    assert all(one["ours"] > 0 and one["peer"] > 0 for one in found)


def test_what_does_not_choose_alike_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = itertools.count()
    monkeypatch.setattr(decisions, "routed", lambda *_: f"worker-{next(chosen)}")
    with pytest.raises(ValueError, match="choose different workers"):
        decisions.measured(1, blocks=True, rounds=1)
