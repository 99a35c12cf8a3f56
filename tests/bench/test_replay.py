"""The replay benchmark on made-up workloads: what must hold of any run, and that an unsound one is no result."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from bench import replay, replay_sensitivity
from bench.replay_policies import MEAN_LOAD, BoundedHashPolicy, NeverPaid, ideal_hits
from bench.replay_result import PolicyResult
from bench.replay_run import CONTRACT, POLICIES, POOL, Replay
from bench.replay_work import BLOCK, blocks, line, mooncake, requests, scaled, sessions, sharing, stampede, synthetic
from bench.replay_worker import MeasuredWorker
from bench.rows import percentile, row_text
from cachefleet_controlplane.routing.worth import UNLEARNT
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import SimulationError, WorkBudget
from cachefleet_controlplane.simulation.simulated_scheduler import Generation
from cachefleet_controlplane.simulation.workload import SimulatedRequest, TraceLine
from cachefleet_controlplane.workers.worth.paid_waiting import PaidWaiting

SETUP = Setup(workers=3, blocks=120, prefill_tokens_per_second=2000.0, model_len=1024)
WORK = synthetic(conversations=10, turns=6)
RECORD = {"input_length": 6758, "output_length": 500, "hash_ids": list(range(14))}
NAMES = ("input_length", "output_length")


@pytest.fixture(scope="module")
def runs() -> dict[str, PolicyResult]:
    return {policy: Replay(WORK, SETUP, policy).run() for policy in POLICIES}


# Workloads.


def test_a_block_of_the_trace_becomes_one_of_ours() -> None:
    request = scaled(1.5, RECORD, block=512, names=NAMES)
    assert request == TraceLine(
        timestamp=1500.0, input_length=13 * BLOCK + 4, output_length=16, hash_ids=tuple(range(13))
    )
    assert len(requests([request])[0].keys) == 13


@pytest.mark.parametrize(("length", "full", "tail"), [(512, 1, 0), (1, 0, 1), (1023, 1, 15), (513, 1, 1)])
def test_a_tail_never_is_a_block(length: int, full: int, tail: int) -> None:
    request = scaled(0.0, {**RECORD, "input_length": length, "output_length": 0}, block=512, names=NAMES)
    assert (len(request.hash_ids), request.input_length % BLOCK, request.output_length) == (full, tail, 1)


def test_those_who_ask_for_the_one_prefix_are_told_from_the_others() -> None:
    work = stampede(prefix=4, rate=50.0, seconds=2.0, cold=5.0, before=4.0)
    hot = sharing(work)
    assert {len(work[number].keys) for number in hot} == {4 + 2}
    assert len(work) - len(hot) == 30


# Policies.


def prompts(*blocks: tuple[int, ...], tail: int = 1) -> list[SimulatedRequest]:
    return requests(line(0.0, one, tail, 1) for one in blocks)


def test_the_ideal_keeps_what_was_used_last() -> None:
    one, two = prompts((0, 1), (10, 11))
    assert ideal_hits([one, one], 4) == 2
    assert ideal_hits([one, two, one], 4) == 2
    assert ideal_hits([one, two, one], 3) == 1  # the tail of the first went before its head
    assert ideal_hits([one, two, one], 2) == 0


def test_the_ideal_computes_the_last_token_of_a_prompt() -> None:
    assert ideal_hits(prompts((1, 2), (1, 2), tail=0), 8) == 1


def test_the_bounded_hash_goes_by_the_beginning_within_its_bound() -> None:
    policy = BoundedHashPolicy(["a", "b", "c"])
    work = prompts(*((1, 2, number) for number in range(60)))
    first = policy.place(work[3])
    first.in_flight.finish()
    under: Counter[str] = Counter()
    for request in work:
        placed = policy.place(request)
        assert request.number or placed.worker == first.worker
        under[placed.worker] += 1
        assert max(under.values()) <= MEAN_LOAD * under.total() / 3 + 1
    assert len(under) == 3


# Workers.


def test_a_worker_reports_what_its_agent_measures() -> None:
    """Prefill in three steps of 0.1, 0.1 and 0.05 s; then ten tokens, each 0.02 s after the one before."""
    setup = Setup(prefill_tokens_per_second=100.0, batched_tokens=10, inter_token_seconds=0.02)
    worker, now = MeasuredWorker("a", POOL, CONTRACT, setup, WorkBudget()), 0.0
    reported = [worker.rates()]
    for number in range(3):
        worker.add(Generation([100 * number + 1, 100 * number + 2], 25, 11))
        while worker.busy:
            step, seconds = worker.begin(now)
            now += seconds
            worker.end(step)
        reported.append(worker.rates())
    assert reported[:3] == [(None, None)] * 3  # an agent's rates take three intervals
    assert reported[3] == pytest.approx((100.0, 0.02))


def test_steps_shared_with_others_make_a_measured_prefill_longer() -> None:
    setup = Setup(prefill_tokens_per_second=100.0, batched_tokens=30)
    worker, now = MeasuredWorker("a", POOL, CONTRACT, setup, WorkBudget()), 0.0
    worker.rates()
    for number in range(3):
        worker.add(Generation([100 * number + 1], 15, 1))
        worker.add(Generation([100 * number + 2], 15, 1))
        step, seconds = worker.begin(now)
        now += seconds
        worker.end(step)
        worker.rates()
    assert worker.rates()[0] == pytest.approx(50.0)


# Runs.


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_is_answered_and_counted_once(runs: dict[str, PolicyResult], policy: str) -> None:
    run = runs[policy]
    assert sum(run.served) == len(run.first_tokens) == len(run.backlogs) == len(run.hits) == len(WORK)
    assert run.blocks == blocks(WORK)
    assert min(run.first_tokens) > 0
    assert min(run.backlogs) >= 0
    assert max(run.worst) > 0


def test_caches_help_where_they_are_known(runs: dict[str, PolicyResult]) -> None:
    ideal = ideal_hits(WORK, SETUP.workers * SETUP.blocks)
    assert runs["random"].hit_blocks < runs["cacheAware"].hit_blocks <= ideal


def test_a_run_is_the_same_each_time(runs: dict[str, PolicyResult]) -> None:
    assert Replay(WORK, SETUP, "cacheAware").run() == runs["cacheAware"]


def test_a_prefix_that_all_ask_for_at_once_is_spread() -> None:
    """On full caches: whoever holds it is not waited for while others idle, as would be where waiting pays nothing."""
    setup = replace(replay.STAMPEDE, workers=4, blocks=600, prefill_tokens_per_second=2000.0, batched_tokens=512)
    work = stampede(prefix=128, rate=50.0, seconds=30.0, cold=5.0, before=70.0)
    hot = sharing(work)

    def late(policy: str, paid: PaidWaiting) -> float:
        replayed = Replay(work, setup, policy)
        replayed.pay_into(paid)
        run = replayed.run()
        return percentile([run.first_token[number] for number in hot], 99)

    even = late("roundRobin", NeverPaid())
    assert late("cacheAware", PaidWaiting()) <= 1.2 * even
    assert late("cacheAware", NeverPaid()) > 1.2 * even


def test_the_plain_rule_learns_nothing() -> None:
    run = Replay(WORK, SETUP, "plain")
    run.run()
    assert {worker.worth for worker in run.registry.workers()} == {UNLEARNT}
    assert not len(run.registry.paid_waiting)


def test_what_has_no_room_waits_and_is_served() -> None:
    at_once = [replace(one, at=2.0) for one in WORK]
    run = Replay(at_once, SETUP, "cacheAware").run()
    assert run.waited
    assert sum(run.served) == len(WORK)


def test_a_request_that_no_worker_takes_is_no_result() -> None:
    with pytest.raises(SimulationError, match="request 1 was refused"):
        Replay(requests([line(0.0, (1,), 1, 1), line(0.0, range(64), 1, 1)]), SETUP, "random").run()


def test_what_is_learnt_can_be_scaled_and_plotted() -> None:
    trace = replay.Trace("made up", lambda: WORK, SETUP)
    found = list(replay_sensitivity.rows(trace))
    assert len(found) == 2 * 3 * len(replay_sensitivity.FACTORS)
    drawn = replay_sensitivity.plot(found)
    assert drawn.count("<polyline") == 2 * 3
    assert drawn.startswith("<svg ")
    assert "nan" not in drawn


# The table.


def test_rows_have_their_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = replay.Trace("mooncake", lambda: WORK, SETUP, replay.MOONCAKE_BARS)
    monkeypatch.setattr(replay, "TRACES", (trace,))
    rows = list(replay.measured(None))
    held = {one["row"]: one["bar"] for one in rows if "bar" in one}
    assert held == {
        "mooncake: block hit ratio, beside ideal shared cache": "≥ 0.92x",
        "mooncake: block hit ratio, beside random": "≥ 1.9x",
        "mooncake: queue met, p99, beside leastLoaded": "≤ 1x",
        "mooncake: fullest queue of each second, p99, beside leastLoaded": "≤ 1.1x",
        "mooncake: second half: block hit ratio, beside ideal shared cache": "≥ 0.92x",
    }
    assert all(row_text(one) for one in rows)


def test_without_traces_it_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    absent = (partial(mooncake, tmp_path), partial(sessions, tmp_path, within=1.0, until=1.0))
    monkeypatch.setattr(replay, "TRACES", tuple(replay.Trace("none", load, SETUP) for load in absent))
    assert list(replay.measured(None)) == []
    assert capsys.readouterr().out.count("left out, there is no") == 2
