"""Simulates a pool's recent requests, or a trace, in a process of its own: one simulation at a time."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from cachefleet_controlplane.history.recorded_requests import RecordedRequest, RecordedRequests
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_model import Changes, FleetModel, fleet_model
from cachefleet_controlplane.simulation.fleet_setup import Setup
from cachefleet_controlplane.simulation.job_stream import pieces
from cachefleet_controlplane.simulation.simulation_job import (
    NO_MEMORY,
    TOO_MUCH_WORK,
    WORK_PER_SECOND,
    Figures,
    Job,
    Scenario,
    happened,
)
from cachefleet_controlplane.simulation.workload import TraceLine
from cachefleet_controlplane.wire.errors import ApiError
from cachefleet_controlplane.workers.views import FleetView, ServedModel
from cachefleet_core.pool.spec import PrefixCachePool
from cachefleet_core.report_frames import Hello

logger = logging.getLogger(__name__)

SIMULATION_SECONDS: Final = 120.0
"""How long one simulation may take."""
_COMMAND: Final = (sys.executable, "-m", "cachefleet_controlplane.simulation")
_FAULT_BYTES: Final = 2000
_UNSTORED: Final = (
    "decisions that are stored from before lack the block keys of their prompts, which are kept in memory alone; send "
    "some requests first, or give a trace"
)
_NO_MEMORY: Final = {NO_MEMORY, -signal.SIGABRT, -signal.SIGKILL}
"""How a process ends for want of memory: by itself, in native code, by the system."""


class FleetToSimulate(Protocol):
    """What it needs of ``Fleet``."""

    policy: RoutingPolicy

    def view(self) -> FleetView: ...
    def models(self) -> list[ServedModel]: ...
    def announced(self, model: str) -> list[Hello]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSimulation:
    """What to simulate: the last ``recorded`` requests of a pool, or a ``trace``; and what is to be otherwise."""

    pool: str | None = None
    """None where there is one only."""
    recorded: int = 0
    trace: tuple[TraceLine, ...] = ()
    trace_block: int = 512
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A fleet that was simulated, and what that gave."""

    policy: str
    budget_mib: int | None
    setup: Setup
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What happened, what the simulation makes of today's fleet, and what it makes of the changed one."""

    pool: str
    happened: Figures | None
    """None of a trace."""
    warm_up: int
    """Earlier requests that filled the simulated caches first."""
    today: Played
    changed: Played
    seconds: float


class Simulate(Protocol):
    """Simulates; ApiError where that cannot be."""

    async def __call__(self, wanted: WantedSimulation) -> Simulated: ...


class Simulator:
    """Runs simulations for the admin API; each may take ``seconds``, the work that fits in, and ``memory`` bytes."""

    def __init__(
        self,
        fleet: FleetToSimulate,
        recorded: RecordedRequests,
        *,
        memory: int,
        seconds: float = SIMULATION_SECONDS,
        command: Sequence[str] = _COMMAND,
    ) -> None:
        self._fleet = fleet
        self._recorded = recorded
        self._seconds = seconds
        self._memory = memory
        self._most_work = math.ceil(seconds * WORK_PER_SECOND)
        self._command = (*command, str(math.ceil(seconds)), str(memory))
        self._busy = False

    async def __call__(self, wanted: WantedSimulation) -> Simulated:
        """The figures; the process ends with this call, however that ends. ApiError."""
        if self._busy:
            raise ApiError(409, "another simulation is running: try again when it is over")
        self._busy = True
        try:
            return await self._simulated(wanted)
        finally:
            self._busy = False

    async def _simulated(self, wanted: WantedSimulation) -> Simulated:
        began = time.monotonic()
        model = self._model(self._pool(wanted.pool))
        records: Sequence[RecordedRequest] = () if wanted.trace else self._records(model.pool.key, wanted.recorded)
        _check_trace(wanted, model.contract.block_size)
        warm_up = max(0, len(records) - wanted.recorded)
        changed = Scenario(setup=model.changed(wanted.changes), policy=wanted.changes.policy or model.policy)
        job = Job(
            pool=model.manifest,
            contract=msgspec.to_builtins(model.contract),
            records=tuple(records),
            trace=wanted.trace,
            trace_block=wanted.trace_block,
            warm_up=warm_up,
            scenarios=(Scenario(setup=model.setup, policy=model.policy), changed),
            most_work=2 * self._most_work,
        )
        if (work := job.work(model.contract.block_size)) > self._most_work:
            raise _too_large(f"{self._most_work:,} steps and blocks, namely {work:,}")
        today, then = await self._run(job)
        budget = model.budget_mib if wanted.changes.budget_mib is None else wanted.changes.budget_mib
        return Simulated(
            pool=model.pool.key,
            happened=happened(records[warm_up:]) if records else None,
            warm_up=warm_up,
            today=Played(policy=model.policy, budget_mib=model.budget_mib, setup=model.setup, figures=today),
            changed=Played(policy=changed.policy, budget_mib=budget, setup=changed.setup, figures=then),
            seconds=time.monotonic() - began,
        )

    def _pool(self, key: str | None) -> PrefixCachePool:
        pools = {pool.key: pool for model in self._fleet.models() for pool in model.declared}
        if key is None and len(pools) == 1:
            return next(iter(pools.values()))
        if key not in pools:
            unnamed = key is None and pools
            said = "there are several pools: name one" if unnamed else f"there is no pool {key or ''}"
            raise ApiError(
                422 if unnamed else 404, f"{said.strip()}; pools: {', '.join(sorted(pools)) or 'none'}", param="pool"
            )
        return pools[key]

    def _model(self, pool: PrefixCachePool) -> FleetModel:
        workers = [worker for worker in self._fleet.view().workers if worker.pool == pool.key]
        told = self._fleet.announced(f"{pool.metadata.namespace}/{pool.spec.model.name}")
        hellos = [hello for hello in told if hello.pool == pool.key]
        return fleet_model(pool, workers, hellos, policy=self._fleet.policy.value)

    def _records(self, pool: str, count: int) -> list[RecordedRequest]:
        """Twice as many as count, where there are, by arrival: the first ones warm up."""
        if not self._recorded.on:
            raise ApiError(409, "no requests are recorded: set CACHEFLEET_RECORDED_REQUEST_BYTES, or give a trace")
        found = self._recorded.latest(pool, 2 * count)
        if not found:
            raise ApiError(409, f"pool {pool} has answered no request since this replica started: {_UNSTORED}")
        return sorted(found, key=lambda record: record.at)

    async def _run(self, job: Job) -> list[Figures]:
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        try:
            async with asyncio.timeout(self._seconds):
                answer, said = await _output(process, job)
        except TimeoutError as error:
            raise _too_large(f"{self._seconds:g} s") from error
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        if process.returncode in _NO_MEMORY:
            raise _too_large(f"{self._memory / 2**20:.0f} MiB (CACHEFLEET_SIMULATION_MEMORY_BYTES)")
        if process.returncode == TOO_MUCH_WORK:
            raise _too_large(f"{job.most_work:,} steps, blocks and reports")
        if process.returncode != 0:
            fault = said[-_FAULT_BYTES:].decode(errors="replace").strip()
            logger.error("a simulation failed: %s", fault)
            raise ApiError(500, f"the simulation failed: {fault.splitlines()[-1] if fault else process.returncode}")
        return msgspec.msgpack.decode(answer, type=list[Figures])


async def _output(process: Process, job: Job) -> tuple[bytes, bytes]:
    """What a process writes to its standard output and error once it has its job."""
    if process.stdin is None:
        raise RuntimeError("the process has no standard input")
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended: its status says why
        for piece in pieces(job):
            process.stdin.write(piece)
            await process.stdin.drain()
    process.stdin.close()
    return await process.communicate()


def _too_large(bound: str) -> ApiError:
    return ApiError(422, f"the simulation takes more than {bound}: simulate fewer requests")


def _check_trace(wanted: WantedSimulation, block_size: int) -> None:
    if wanted.trace and wanted.trace_block % block_size:
        message = f"got {wanted.trace_block}, allowed: a multiple of the pool's blocks of {block_size} tokens"
        raise ApiError(422, message, param="source.blockTokens")
