"""``POST /admin/v1/simulate``: what another policy, budget or number of workers would have given."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Request
from pydantic import AfterValidator, ConfigDict, Field, model_validator
from starlette.responses import Response

from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.answers.client_presence import unless_gone
from cachefleet_controlplane.admin.schemas import Ratio, Schema
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.simulation.fleet_model import Changes
from cachefleet_controlplane.simulation.simulation_job import MAX_REQUESTS
from cachefleet_controlplane.simulation.simulator import Played, Simulate, Simulated, WantedSimulation
from cachefleet_controlplane.simulation.workload import TraceLine
from cachefleet_core.pool.section import MAX_MIB

MAX_TOKENS: Final = 2**24
MAX_BLOCKS: Final = 2**17
BlockId = Annotated[int, Field(ge=0, lt=2**63)]
_REFUSALS: Final = refusals(404, 409, 500)


class TracedRequest(Schema):
    """One request of a trace, as Mooncake's traces have them: a line of JSON."""

    model_config = ConfigDict(alias_generator=None)

    timestamp: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
    """In milliseconds."""
    input_length: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    output_length: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    hash_ids: Annotated[tuple[BlockId, ...], Field(max_length=MAX_BLOCKS)] = ()
    """A number for each block of the prompt: equal beginnings have equal numbers."""


def _any(trace: tuple[TracedRequest, ...]) -> tuple[TracedRequest, ...]:
    """As ``min_length``, which would count the requests that are sound alone."""
    if not trace:
        raise ValueError("it has no requests")
    return trace


class SimulationSource(Schema):
    """Which requests: the last recorded ones of a pool, or a trace."""

    model_config = ConfigDict(extra="forbid")

    recorded: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] | None = None
    trace: Annotated[tuple[TracedRequest, ...], Field(max_length=MAX_REQUESTS), AfterValidator(_any)] | None = None
    block_tokens: Annotated[int, Field(ge=1, le=65536)] = 512
    """Tokens of one block of the trace."""

    @model_validator(mode="after")
    def _exactly_one(self) -> SimulationSource:
        if (self.recorded is None) == (self.trace is None):
            raise ValueError("give recorded or trace: one of them")
        return self


class SimulationChanges(Schema):
    """What is to be otherwise; what is not named is as today."""

    model_config = ConfigDict(extra="forbid")

    policy: RoutingPolicy | None = None
    budget_mib: Annotated[int, Field(ge=0, le=MAX_MIB)] | None = None
    """Bound on idle cached blocks, of each device."""
    workers: Annotated[int, Field(ge=1, le=256)] | None = None


class SimulationRequest(Schema):
    """What to simulate."""

    model_config = ConfigDict(extra="forbid")

    source: SimulationSource
    changes: SimulationChanges = SimulationChanges()
    pool: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """As namespace/name; needed where there are several."""


class SimulationFigures(Schema):
    """Sums and percentiles over the same requests; null where there is nothing to tell."""

    requests: int
    hit_ratio: Ratio | None
    prompt_tokens: int
    recomputed_tokens: int
    queue_p50_seconds: float | None
    """What a request waits at the gateway, and the queue of its worker as its decision reckoned it."""
    queue_p99_seconds: float | None
    ttft_p50_seconds: float | None
    ttft_p95_seconds: float | None
    refused: int | None
    """Requests too large for any worker; null of what happened, as are preemptions: neither is recorded."""
    preemptions: int | None


class SimulatedFleet(SimulationFigures):
    """A simulated fleet, and what it gave."""

    policy: RoutingPolicy
    workers: int
    budget_mib: int | None
    """Null where nothing holds the engines to one: they keep all."""
    blocks: int
    """Of each worker."""
    budget_blocks: int | None = None
    """As many of these as the budget lets be idle; more than ``blocks`` is no bound. Null where there is no budget."""
    prefill_tokens_per_second: float
    inter_token_seconds: float


class Simulation(Schema):
    """What happened beside what the simulation makes of today's fleet and of the changed one.

    How far today is from what happened is the simulation's own error.
    """

    pool: str
    happened: SimulationFigures | None
    """Null of a trace."""
    today: SimulatedFleet
    changed: SimulatedFleet
    warm_up: int
    """Earlier requests that filled the simulated caches first and are not counted."""
    seconds: float
    """How long the simulation took."""


def simulate_routes(simulate: Simulate) -> APIRouter:
    """The route ``POST /simulate``."""
    router = APIRouter(tags=["routing"], responses=ERRORS)

    @router.post(
        "/simulate",
        summary="What another policy, budget or number of workers would have given",
        responses=_REFUSALS,
        response_model=Simulation,
    )
    async def simulated(wanted: SimulationRequest, request: Request) -> Simulation | Response:
        found = await unless_gone(request, simulate(_wanted(wanted)))
        return found if isinstance(found, Response) else _shown(found)

    return router


def _wanted(wanted: SimulationRequest) -> WantedSimulation:
    source, changes = wanted.source, wanted.changes
    return WantedSimulation(
        pool=wanted.pool,
        recorded=source.recorded or 0,
        trace=tuple(TraceLine(**dict(line)) for line in source.trace or ()),
        trace_block=source.block_tokens,
        changes=Changes(
            policy=changes.policy.value if changes.policy else None,
            budget_mib=changes.budget_mib,
            workers=changes.workers,
        ),
    )


def _shown(simulated: Simulated) -> Simulation:
    happened = simulated.happened
    return Simulation(
        pool=simulated.pool,
        happened=SimulationFigures.model_validate(happened) if happened else None,
        today=_played(simulated.today),
        changed=_played(simulated.changed),
        warm_up=simulated.warm_up,
        seconds=simulated.seconds,
    )


def _played(played: Played) -> SimulatedFleet:
    return SimulatedFleet(
        **SimulationFigures.model_validate(played.figures).model_dump(),
        policy=RoutingPolicy(played.policy),
        workers=played.setup.workers,
        budget_mib=played.budget_mib,
        blocks=played.setup.blocks,
        budget_blocks=played.setup.budget_blocks,
        prefill_tokens_per_second=played.setup.prefill_tokens_per_second,
        inter_token_seconds=played.setup.inter_token_seconds,
    )
