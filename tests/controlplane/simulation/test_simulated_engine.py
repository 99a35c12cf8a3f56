"""The modelled engine beside the protocol-true fake one, and what must hold of any run."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay_run import Replay, pool_view
from bench.replay_work import BLOCK, chains, synthetic
from bench.replay_work import Request as Replayed
from bench.replay_worker import CONTRACT
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import WorkBudget
from cachefleet_controlplane.simulation.simulated_run import SimulatedRun
from cachefleet_controlplane.simulation.simulation_job import Scenario
from cachefleet_controlplane.simulation.workload import Request

SETUP = Setup(workers=3, blocks=120, prefill_tokens_per_second=2000.0, model_len=1024)
WORK = synthetic(conversations=10, turns=6)


def requests(work: list[Replayed]) -> list[Request]:
    """A replayed workload by chained block keys, as the simulation has it."""
    keys = chains(work)
    return [
        Request(one.number, one.at, tuple(key + (1 << 40) for key in chain), one.length, one.outputs)
        for one, chain in zip(work, keys, strict=True)
    ]


def simulated(work: list[Replayed], setup: Setup, policy: str) -> SimulatedRun:
    run = SimulatedRun(
        requests(work), pool_view(setup, []).pool, CONTRACT, Scenario(setup=setup, policy=policy), WorkBudget(10**9)
    )
    run.run()
    return run


@pytest.mark.parametrize("budget", [None, 60, 0])
def test_it_serves_as_the_fake_engine_does(budget: int | None) -> None:
    """Request by request, where decisions do not rest on rates that an agent measures and a simulation is given."""
    setup = replace(SETUP, budget_blocks=budget)
    fake, run = Replay(WORK, setup, "roundRobin").run(), simulated(WORK, setup, "roundRobin")
    assert run.result.hits == fake.hits
    assert run.result.first_token == pytest.approx(fake.first_token)
    assert run.result.preemptions == fake.preemptions


def test_it_preempts_as_the_fake_engine_does() -> None:
    setup = replace(SETUP, workers=1, blocks=90)
    work = [Replayed(n, 0.0, tuple(range(20 * n, 20 * n + 20)), 3, 120) for n in range(4)]
    fake, run = Replay(work, setup, "roundRobin").run(), simulated(work, setup, "roundRobin")
    assert run.result.first_token == pytest.approx(fake.first_token)
    assert run.result.preemptions == run.figures().preemptions == fake.preemptions > 0
    assert run.figures(len(work)).preemptions == 0  # those of requests that only fill the caches do not count


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
    assert aware.prompt_tokens == blind.prompt_tokens == sum(one.length for one in WORK)


def test_figures_leave_out_what_warms_up() -> None:
    run = simulated(WORK, SETUP, "cacheAware")
    assert run.figures(since=50).requests == 10
    assert run.figures(since=50).prompt_tokens == sum(one.length for one in WORK[50:])


@pytest.mark.parametrize("policy", list(RoutingPolicy))
@pytest.mark.parametrize("setup", [replace(SETUP, blocks=64), replace(SETUP, model_len=64 * BLOCK)])
@pytest.mark.parametrize("at", [0.0, 100.0])
def test_what_fits_no_worker_is_refused_and_told(at: float, setup: Setup, policy: str) -> None:
    """With 3 tokens of the answer it fills 64 blocks, with 4 it needs another."""
    fits, larger = (Replayed(number, at, tuple(range(63)), 13, 3 + number) for number in range(2))
    figures = simulated([fits, larger], setup, policy).figures()
    assert (figures.requests, figures.refused) == (1, 1)


def test_a_pause_takes_no_time() -> None:
    """A year between requests: hits as with seconds between them."""
    long = [replace(one, at=4e7 * one.number) for one in WORK]
    short = [replace(one, at=40.0 * one.number) for one in WORK]
    assert simulated(long, SETUP, "roundRobin").result.hits == simulated(short, SETUP, "roundRobin").result.hits
