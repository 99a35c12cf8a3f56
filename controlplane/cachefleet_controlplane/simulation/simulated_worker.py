"""A worker in virtual time: a modelled engine, and the frames by which its agent would tell of it."""

from __future__ import annotations

from typing import Final

from cachefleet_controlplane.routing.throughput import OWN_BLOCKS
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.run_result import WorkBudget
from cachefleet_controlplane.simulation.simulated_blocks import SimulatedBlocks
from cachefleet_controlplane.simulation.simulated_scheduler import Generation, SimulatedScheduler, Step
from cachefleet_core.index_contract import IndexContract
from cachefleet_core.report_frames import Delta, Hello, Operation, Phase, Snapshot, State, encode

EPOCH: Final = "simulated-1"
MAX_OPERATIONS: Final = 8192
"""Of one frame: half of what the protocol allows."""


class SimulatedWorker:
    """One engine with its agent. Its caller alternates ``begin`` and ``end``, the returned seconds apart."""

    def __init__(self, name: str, pool: str, contract: IndexContract, setup: Setup, budget: WorkBudget) -> None:
        self.name = name
        self.stepping = False
        self.step_ends = 0.0
        """When the step under way is over, or the last one was."""
        self._budget = budget
        self.pool = SimulatedBlocks(setup.blocks, setup.budget_blocks)
        self.scheduler = SimulatedScheduler(
            self.pool,
            block_size=contract.block_size,
            running=setup.running,
            batched_tokens=setup.batched_tokens,
        )
        self._setup = setup
        self._hello = Hello(
            worker=name,
            pool=pool,
            epoch=EPOCH,
            endpoint=f"http://{name}",
            contract=contract,
            blocks_total=setup.blocks + OWN_BLOCKS,
            max_model_len=setup.model_len,
            max_batched_tokens=setup.batched_tokens,
            shares=True,
        )
        self._sharing = 0 if setup.share_seconds is None else setup.replicas
        self._sequence = 0

    @property
    def busy(self) -> bool:
        """Whether it has anything to do."""
        return self.scheduler.busy

    def opening(self) -> list[bytes]:
        """The first frames of its connection."""
        return [encode(self._hello), encode(Snapshot(sequence=0, part=0, last=True)), self.state()]

    def add(self, generation: Generation) -> None:
        """Take a request."""
        self.scheduler.waiting.append(generation)

    def begin(self, now: float) -> tuple[Step, float]:
        """The next step, and how long it takes."""
        self.stepping = True
        step = self.scheduler.schedule()
        self._budget.spend(1 + len(step.work))
        seconds = step.prefill_tokens / self._setup.prefill_tokens_per_second
        seconds += self._setup.inter_token_seconds if step.decoding else 0.0
        self.step_ends = now + seconds
        return step, seconds

    def end(self, step: Step) -> tuple[list[Generation], list[bytes]]:
        """A step is over: the requests that got a token, and the frames that tell of its blocks."""
        self.stepping = False
        return self.scheduler.update(step), self._deltas(self.pool.take())

    def backlog(self, now: float) -> float:
        """Seconds until the prompts that it has are prefilled, without what is cached of them."""
        tokens = self.scheduler.uncomputed_tokens()
        rest = max(0.0, self.step_ends - now) if self.stepping else 0.0
        return tokens / self._setup.prefill_tokens_per_second + rest

    def state(self) -> bytes:
        """The report of this moment, as a frame."""
        self._budget.spend(1)
        scheduler, pool, setup = self.scheduler, self.pool, self._setup
        prefill, inter_token = self.rates()
        return encode(
            State(
                sequence=self._sequence,
                digest=pool.digest,
                held=pool.held,
                phase=Phase.READY,
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                blocks_total=setup.blocks + OWN_BLOCKS,
                blocks_free=pool.free,
                blocks_idle=pool.idle,
                preemptions=scheduler.counters.preemptions,
                prefill_tokens_per_second=prefill,
                inter_token_seconds=inter_token,
                prefix_queries=scheduler.counters.queries,
                prefix_hits=scheduler.counters.hits,
                sharing=self._sharing,
            )
        )

    def rates(self) -> tuple[float | None, float | None]:
        """Prefilled tokens per second and seconds between tokens, as they are reported; None where unknown."""
        return self._setup.prefill_tokens_per_second, self._setup.inter_token_seconds

    def _deltas(self, operations: list[Operation]) -> list[bytes]:
        frames = []
        for start in range(0, len(operations), MAX_OPERATIONS):
            self._sequence += 1
            part = tuple(operations[start : start + MAX_OPERATIONS])
            frames.append(encode(Delta(sequence=self._sequence, operations=part)))
        return frames
