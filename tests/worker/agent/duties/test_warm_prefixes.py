from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.report_frames import Warm
from cachefleet_core.warmth import Prefix, WarmProblem
from cachefleet_worker.agent.duties.warm_prefixes import Gate, Prefixes, Progress, Result, Room


def make(limit: int = 10) -> Prefixes:
    return Prefixes(limit=limit, retry_base=1.0, retry_cap=8.0)


def warm(*names: str, generation: int = 1, uid: str = "u", salts: tuple[str, ...] = ()) -> Warm:
    prefixes = tuple(Prefix(name=name, messages=b"[]", salts=salts) for name in names)
    return Warm(prefixes=prefixes, standing=True, uid=uid, generation=generation)


def run(
    prefixes: Prefixes, now: float, progress: Progress = Progress.CACHED, *, tokens: int = 0, error: str = ""
) -> list[str]:
    """Everything that is due, with one outcome."""
    done = []
    while (job := prefixes.next(now)) is not None:
        done.append(job.prefix.name + job.prefix.salt)
        prefixes.finished(job, Result(progress, tokens, error), now)
    return done


def test_each_prompt_is_cached_under_each_salt() -> None:
    prefixes = make()
    prefixes.stand(warm("a", "b", salts=("1", "2", "2")))
    assert prefixes.pending
    assert run(prefixes, 0.0) == ["a1", "a2", "b1", "b2"]
    assert (prefixes.warmth.done, prefixes.warmth.total, prefixes.pending) == (4, 4, False)


@pytest.mark.requirement("C5")
def test_standing_prompts_are_cached_again_after_a_clearing_and_in_each_epoch() -> None:
    prefixes = make()
    prefixes.stand(warm("a"))
    prefixes.once([Prefix(name="x", messages=b"[]")])
    assert run(prefixes, 0.0) == ["a", "x"]
    prefixes.again()
    assert run(prefixes, 0.0) == ["a"]
    prefixes.begin()
    assert run(prefixes, 0.0) == ["a"]
    assert prefixes.warmth.total == 1


@pytest.mark.requirement("C11")
def test_failures_are_shown_and_tried_again_less_and_less_often() -> None:
    prefixes = make()
    prefixes.stand(warm("a"))
    tried = [second for second in range(40) if run(prefixes, float(second), Progress.FAILED)]
    assert tried == [0, 2, 6, 14, 22, 30, 38]
    assert prefixes.warmth.failed == ("a",)
    assert prefixes.pending
    assert prefixes.next_due() == 46.0
    assert run(prefixes, 46.0) == ["a"]
    assert prefixes.warmth.done == 1
    assert prefixes.next_due() is None


def test_what_the_engine_refuses_holds_nothing_up_and_is_tried_again_all_the_same() -> None:
    prefixes = make()
    prefixes.stand(warm("a"))
    assert run(prefixes, 0.0, Progress.REFUSED) == ["a"]
    assert not prefixes.pending
    assert prefixes.warmth.failed == ("a",)
    assert prefixes.next_due() == 8.0


def test_others_are_tried_once() -> None:
    prefixes = make()
    prefixes.once([Prefix(name="x", messages=b"[]")])
    pending = prefixes.pending
    assert run(prefixes, 0.0, Progress.FAILED) == ["x"]
    assert (pending, prefixes.pending) == (True, False)
    assert run(prefixes, 1e9) == []


def test_a_new_set_keeps_what_is_cached_and_drops_what_it_leaves_out() -> None:
    prefixes = make()
    prefixes.stand(warm("a", "b"))
    run(prefixes, 0.0, Progress.FAILED)
    prefixes.stand(warm("b", "c", generation=2))
    assert prefixes.warmth.total == 2
    assert prefixes.warmth.failed == ("b",)
    assert run(prefixes, 100.0) == ["c", "b"]
    prefixes.stand(warm(generation=3))
    assert (prefixes.warmth.total, prefixes.pending, prefixes.named) == (0, False, True)


@pytest.mark.parametrize(
    ("second", "taken"),
    [({"generation": 1}, False), ({"generation": 2}, True), ({"generation": 3}, True),
     ({"generation": 1, "uid": "v"}, True)],
)  # fmt: skip
def test_an_older_set_is_ignored(second: dict[str, Any], taken: bool) -> None:  # noqa: FBT001 (a row)
    prefixes = make()
    prefixes.stand(warm("a", generation=2))
    assert prefixes.stand(warm("b", **second)) is taken


def test_what_does_not_fit_is_said() -> None:
    prefixes = make(limit=2)
    prefixes.stand(warm("a", "b", "c"))
    prefixes.once([Prefix(name="x", messages=b"[]")])
    assert (prefixes.warmth.total, prefixes.warmth.failed) == (4, ("c", "x"))


def test_traffic_waits_at_the_start_only() -> None:
    gate = Gate()
    gate.begin(0.0)
    assert gate.update(1.0, outstanding=True, timeout=10)
    assert not gate.update(2.0, outstanding=False, timeout=10)
    assert not gate.update(3.0, outstanding=True, timeout=10)  # cleared later: the worker goes on
    assert not gate.late


def test_traffic_does_not_wait_for_ever() -> None:
    gate = Gate()
    gate.begin(5.0)
    assert gate.update(14.9, outstanding=True, timeout=10)
    assert not gate.update(15.0, outstanding=True, timeout=10)
    assert gate.late
    gate.update(16.0, outstanding=False, timeout=10)
    assert gate == Gate(over=True, late=False, since=5.0)
    gate.begin(20.0)
    assert gate.update(20.0, outstanding=True, timeout=10)


def test_without_prefixes_there_is_nothing_to_wait_for() -> None:
    gate = Gate()
    gate.begin(0.0)
    assert not gate.update(0.0, outstanding=False, timeout=10)


def test_a_worker_that_is_to_go_tries_nothing_more_until_its_engine_is_started_anew() -> None:
    prefixes = make()
    prefixes.stand(warm("a"))
    prefixes.once([Prefix(name="x", messages=b"[]")])
    prefixes.rest()
    assert (run(prefixes, 1e9), prefixes.next_due()) == ([], None)
    prefixes.begin()
    assert run(prefixes, 0.0) == ["a"]


def problems(prefixes: Prefixes) -> list[WarmProblem]:
    return list(prefixes.warmth.problems)


def test_a_prefix_longer_than_the_model_takes_is_told_with_both_numbers() -> None:
    prefixes = make()
    prefixes.bound(Room(served=100))
    prefixes.stand(warm("a", salts=("1", "2")))
    run(prefixes, 0.0, Progress.REFUSED, tokens=101)
    assert problems(prefixes) == [
        WarmProblem(name="a", kind="too_long", tokens=101, limit=100, detail="engine.maxModelLen")
    ]


def test_a_prefix_longer_than_the_budget_is_told_until_the_budget_has_room() -> None:
    prefixes = make()
    prefixes.bound(Room(served=1000, kept=47))
    prefixes.stand(warm("a", "b"))
    run(prefixes, 0.0, tokens=48)
    assert [(one.name, one.kind, one.tokens, one.limit, one.detail) for one in problems(prefixes)] == [
        ("a", "too_long", 48, 47, "prefixCache.budgetMiB"),
        ("b", "too_long", 48, 47, "prefixCache.budgetMiB"),
    ]
    assert (prefixes.warmth.done, prefixes.warmth.failed, prefixes.pending) == (0, ("a", "b"), False)
    prefixes.bound(Room(served=1000, kept=48))
    assert prefixes.pending
    assert run(prefixes, 0.0, tokens=48) == ["a", "b"]
    assert (prefixes.warmth.done, problems(prefixes)) == (2, [])


def test_a_refused_prefix_is_told_at_once_and_a_failing_one_after_three_times() -> None:
    prefixes = make()
    prefixes.stand(warm("a"))
    run(prefixes, 0.0, Progress.REFUSED, error="HTTP 400")
    assert problems(prefixes) == [WarmProblem(name="a", kind="refused", attempts=1, detail="HTTP 400")]
    prefixes = make()
    prefixes.stand(warm("a"))
    for attempt in range(3):
        assert problems(prefixes) == []
        run(prefixes, 100.0 * attempt, Progress.FAILED, error="HTTP 503")
    assert problems(prefixes) == [WarmProblem(name="a", kind="failing", attempts=3, detail="HTTP 503")]
    run(prefixes, 1000.0)
    assert problems(prefixes) == []


def test_prompts_that_are_tried_once_are_nobodys_problem() -> None:
    prefixes = make()
    prefixes.once([Prefix(name="x", messages=b"[]")])
    run(prefixes, 0.0, Progress.REFUSED)
    assert problems(prefixes) == []


def test_prefixes_beyond_what_a_worker_takes_are_told() -> None:
    prefixes = make(limit=1)
    prefixes.stand(warm("a", "b"))
    assert [(one.name, one.kind) for one in problems(prefixes)] == [("b", "refused")]
