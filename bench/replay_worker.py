"""A modelled worker whose agent measures the engine's rates, as agents do, in place of being told them.

A request's prefill lasts from its first step to its first token, so that steps shared with others make it longer, and
tokens come slower beside others' prefill. The figures are those of an engine's metrics page; what makes rates of them
is the agent's own.
"""

from __future__ import annotations

from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import WorkBudget
from cachefleet_controlplane.simulation.simulated_scheduler import Generation, Step
from cachefleet_controlplane.simulation.simulated_worker import SimulatedWorker
from cachefleet_core.index_contract import IndexContract
from cachefleet_worker.agent.engines.engine_poll import LoadMetrics
from cachefleet_worker.agent.load_meter import LoadMeter


class MeasuredWorker(SimulatedWorker):
    """See the module."""

    def __init__(self, name: str, pool: str, contract: IndexContract, setup: Setup, budget: WorkBudget) -> None:
        super().__init__(name, pool, contract, setup, budget)
        self._meter = LoadMeter(setup.blocks)
        self._scheduled: dict[Generation, float] = {}
        self._last_token: dict[Generation, float] = {}
        self._prefill_tokens = self._prefill_seconds = 0.0
        self._inter_token_sum = self._inter_token_count = 0.0

    def begin(self, now: float) -> tuple[Step, float]:
        step, seconds = super().begin(now)
        for generation, _ in step.work:
            self._scheduled.setdefault(generation, now)
        return step, seconds

    def end(self, step: Step) -> tuple[list[Generation], list[bytes]]:
        advanced, frames = super().end(step)
        for generation in advanced:
            self._measure(generation)
        return advanced, frames

    def rates(self) -> tuple[float | None, float | None]:
        load = self._meter.add(
            LoadMetrics(
                prefill_tokens=self._prefill_tokens,
                prefill_seconds=self._prefill_seconds,
                inter_token_sum=self._inter_token_sum,
                inter_token_count=self._inter_token_count,
            )
        )
        return load.prefill_tokens_per_second, load.inter_token_seconds

    def _measure(self, generation: Generation) -> None:
        now = self.step_ends
        if generation.said == 1:
            self._prefill_tokens += generation.prompt_tokens - generation.cached_tokens
            self._prefill_seconds += now - self._scheduled.pop(generation)
        else:
            self._inter_token_sum += now - self._last_token[generation]
            self._inter_token_count += 1
        self._last_token[generation] = now
        if generation.over:
            del self._last_token[generation]
