"""Plays a job's requests through each of its scenarios."""

from __future__ import annotations

import msgspec

from cachefleet_controlplane.simulation.run_result import WorkBudget
from cachefleet_controlplane.simulation.simulated_run import SimulatedRun
from cachefleet_controlplane.simulation.simulation_job import Figures, Job, Scenario
from cachefleet_controlplane.simulation.workload import SimulatedRequest, from_records, from_trace
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.pool.spec import read_pool


def simulate(job: Job) -> list[Figures]:
    """The figures of each scenario. SimulationError where a run is not sound, TooMuchWorkError."""
    pool = read_pool(job.pool)
    contract = msgspec.convert(job.contract, IndexContract)
    requests = _requests(job, contract.block_size)
    found: dict[Scenario, Figures] = {}
    budget = WorkBudget(job.most_work)
    for scenario in job.scenarios:
        if scenario not in found:
            run = SimulatedRun(requests, pool, contract, scenario, budget=budget)
            run.run()
            found[scenario] = run.figures(job.warm_up)
    return [found[scenario] for scenario in job.scenarios]


def _requests(job: Job, block_size: int) -> list[SimulatedRequest]:
    if job.trace:
        longest = max(scenario.setup.longest(block_size) for scenario in job.scenarios)
        return from_trace(job.trace, block_size=block_size, trace_block=job.trace_block, longest=longest)
    return from_records(job.records, block_size)
