from __future__ import annotations

from typing import Any

import pytest

from cachefleet_core.report_frames import Prefix, Warm
from cachefleet_worker.agent.duties.warm_prefixes import Gate, Prefixes, Progress


def make(limit: int = 10) -> Prefixes:
    return Prefixes(limit=limit, retry_base=1.0, retry_cap=8.0)


def warm(*names: str, generation: int = 1, uid: str = "u", salts: tuple[str, ...] = ()) -> Warm:
    prefixes = tuple(Prefix(name=name, messages=b"[]", salts=salts) for name in names)
    return Warm(prefixes=prefixes, standing=True, uid=uid, generation=generation)


def run(prefixes: Prefixes, now: float, progress: Progress = Progress.CACHED) -> list[str]:
    """Everything that is due, with one outcome."""
    done = []
    while (job := prefixes.next(now)) is not None:
        done.append(job.prefix.name + job.prefix.salt)
        prefixes.finished(job, progress, now)
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
