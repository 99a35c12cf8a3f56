"""Runs in virtual time: what must hold of any, and that an unsound one has no result."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay_run import CONTRACT, replay_pool
from bench.replay_work import BLOCK, line, requests, synthetic
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.placement import Placed, Unplaced
from cachefleet_controlplane.simulation.run_result import SimulationError
from cachefleet_controlplane.simulation.simulated_fleet import SimulatedWorkers, worker_names
from cachefleet_controlplane.simulation.simulated_run import SimulatedRun
from cachefleet_controlplane.simulation.simulated_scheduler import Generation
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_controlplane.simulation.simulation_job import Scenario
from cachefleet_controlplane.simulation.workload import SimulatedRequest

SETUP = Setup(workers=3, blocks=120, prefill_tokens_per_second=2000.0, model_len=1024)
WORK = synthetic(conversations=10, turns=6)


def run_of(work: list[SimulatedRequest], setup: Setup, policy: str, **options: Any) -> SimulatedRun:
    return SimulatedRun(work, replay_pool(setup), CONTRACT, Scenario(setup=setup, policy=policy), **options)


def simulated(work: list[SimulatedRequest], setup: Setup, policy: str, **options: Any) -> SimulatedRun:
    run = run_of(work, setup, policy, **options)
    run.run()
    return run


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), budgets=st.tuples(st.integers(0, 300), st.integers(0, 300)))
def test_a_bigger_budget_never_serves_less(seed: int, budgets: tuple[int, int]) -> None:
    """On one worker without load: what was used last stays, so a bigger cache holds all that a smaller one does."""
    work = [replace(one, at=20.0 * one.number, outputs=1) for one in synthetic(conversations=5, turns=5, seed=seed)]
    hits = []
    for budget in sorted(budgets):
        setup = replace(SETUP, workers=1, blocks=600, budget_blocks=budget)
        hits.append(sum(simulated(work, setup, "roundRobin").result.hits.values()))
    assert hits[0] <= hits[1]


def test_with_a_budget_of_0_nothing_idle_is_served() -> None:
    work = [replace(one, at=20.0 * one.number) for one in WORK]
    run = simulated(work, replace(SETUP, budget_blocks=0), "cacheAware")
    assert set(run.result.hits.values()) == {0}


def test_caches_help_where_they_are_known() -> None:
    roomy = replace(SETUP, blocks=400)
    aware, blind = (simulated(WORK, roomy, policy).figures() for policy in ("cacheAware", "leastLoaded"))
    assert aware.recomputed_tokens < blind.recomputed_tokens
    assert aware.prompt_tokens == blind.prompt_tokens == sum(one.tokens for one in WORK)


def test_figures_leave_out_what_warms_up() -> None:
    run = simulated(WORK, SETUP, "cacheAware")
    assert run.figures(since=50).requests == 10
    assert run.figures(since=50).prompt_tokens == sum(one.tokens for one in WORK[50:])


def test_preemptions_are_those_of_requests_that_count() -> None:
    work = requests(line(0.0, range(20 * n, 20 * n + 20), 3, 120) for n in range(4))
    run = simulated(work, replace(SETUP, workers=1, blocks=90), "roundRobin")
    assert run.figures().preemptions == sum(run.result.preemptions.values()) > 0
    assert run.figures(len(work)).preemptions == 0  # those of requests that only fill the caches do not count


@pytest.mark.parametrize("policy", list(RoutingPolicy))
@pytest.mark.parametrize("setup", [replace(SETUP, blocks=64), replace(SETUP, model_len=64 * BLOCK)])
@pytest.mark.parametrize("at", [0.0, 100.0])
def test_what_fits_no_worker_is_refused_and_told(at: float, setup: Setup, policy: str) -> None:
    """With 3 tokens of the answer it fills 64 blocks, with 4 it needs another."""
    work = [replace(one, at=at) for one in requests(line(at, range(63), 13, 3 + number) for number in range(2))]
    run = simulated(work, setup, policy)
    assert (run.figures().requests, run.figures().refused) == (1, 1)
    assert run.result.refused == {1}


def test_a_pause_takes_no_time() -> None:
    """A year between requests: hits as with seconds between them."""
    long = [replace(one, at=4e7 * one.number) for one in WORK]
    short = [replace(one, at=40.0 * one.number) for one in WORK]
    assert simulated(long, SETUP, "roundRobin").result.hits == simulated(short, SETUP, "roundRobin").result.hits


def test_another_policy_places_in_place_of_the_control_plane() -> None:
    """Those that it lets wait are placed once it has room, in their order; what it refuses is refused."""
    place = OneAtATime(worker_names(SETUP)[1])
    run = simulated(WORK, SETUP, "cacheAware", placement=place)
    refused = {one.number for one in WORK if one.number % 10 == 0}
    assert set(run.result.workers.values()) == {place.worker}
    assert list(run.result.workers) == sorted({one.number for one in WORK} - refused)
    assert run.result.refused == refused
    assert len(run.result.waited) > len(WORK) / 2
    assert place.under_way == 0


class OneAtATime:
    """All requests on one worker, one after the other; every tenth is refused."""

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.under_way = 0

    def place(self, request: SimulatedRequest) -> Placed | Unplaced:
        if request.number % 10 == 0:
            return Unplaced.REFUSED
        if self.under_way:
            return Unplaced.WAITS
        self.under_way += 1
        return Placed(self.worker, self)

    def first_token(self) -> None:
        pass

    def finish(self, *, cached_tokens: int | None = None) -> None:
        self.under_way -= 1


def test_a_worker_with_requests_has_their_uncached_tokens_to_compute() -> None:
    """64 tokens of a step are computed at once, which takes 0.032 s; those that wait count without what is cached."""
    worker = SimulatedWorker("a", "default/replay", CONTRACT, SETUP, run_of(WORK, SETUP, "roundRobin")._budget)
    first, second = (
        Generation(one.all_keys(BLOCK), one.tokens, one.outputs)
        for one in requests([line(0.0, range(8), 2, 1), line(1.0, range(4), 6, 1)])
    )
    worker.add(first)
    assert worker.backlog(0.0) == pytest.approx(130 / 2000)
    step, seconds = worker.begin(0.0)
    assert worker.backlog(seconds / 2) == pytest.approx(98 / 2000)
    worker.end(step)
    worker.add(second)
    assert worker.backlog(seconds) == pytest.approx((66 + 6) / 2000)


# What is not sound has no result.


def test_a_frame_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = SimulatedWorkers.deliver
    lost: list[bytes] = []

    def lossy(fleet: SimulatedWorkers, worker: SimulatedWorker, data: bytes) -> None:
        if not lost and b"delta" in data:
            lost.append(data)
        else:
            deliver(fleet, worker, data)

    monkeypatch.setattr(SimulatedWorkers, "deliver", lossy)
    with pytest.raises(SimulationError, match="asked for something"):
        simulated(WORK, SETUP, "cacheAware")


def test_an_index_that_is_wrong_at_the_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(WORK, SETUP, "roundRobin")
    check = SimulatedWorkers.check

    def last(fleet: SimulatedWorkers) -> None:
        fleet.workers["simulated-0"].pool.digest += 1
        check(fleet)

    monkeypatch.setattr(SimulatedWorkers, "check", last)
    with pytest.raises(SimulationError, match="the index is wrong about simulated-0"):
        run.run()


def test_a_request_answered_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Generation, "over", property(lambda generation: generation.said > 0))
    with pytest.raises(SimulationError, match="not answered once and whole"):
        simulated(WORK, SETUP, "roundRobin")
