"""``/admin/v1/capacity``: what caches of other sizes would serve of pools' requests, and what is worth doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, Protocol

from fastapi import APIRouter, Query, Request, Response
from pydantic import ConfigDict, Field

from cachefleet_controlplane.admin.admin_openapi import ERRORS, answers, refusals
from cachefleet_controlplane.admin.answers.client_presence import unless_gone
from cachefleet_controlplane.admin.answers.entity_tags import encoded
from cachefleet_controlplane.admin.schemas import Schema
from cachefleet_controlplane.simulation.simulation_job import MAX_REQUESTS
from cachefleet_core.fleet_status.capacity_facts import CapacityFacts, CapacityList

_Pool = Annotated[str | None, Query(min_length=1, max_length=512, description='"namespace/name"; all pools without.')]
_REFUSALS: Final = refusals(404, 409, 500)


class ConfirmRequest(Schema):
    """Which advice to simulate, with how many of the latest requests; as many before them fill the caches first."""

    model_config = ConfigDict(extra="forbid")

    pool: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """As namespace/name; needed where there are several."""
    action: Literal["moreWorkers", "moreBudget", "lessBudget", "fewerWorkers"] | None = None
    """Of the pool's advice; the first one without."""
    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] = 1000


Capacities = Callable[[], Sequence[CapacityFacts]]


class Confirm(Protocol):
    """Simulates a pool's advice; the pool with what came of it. ApiError where that cannot be."""

    async def __call__(self, pool: str | None, action: str | None, requests: int) -> CapacityFacts: ...


def capacity_routes(capacities: Capacities, confirm: Confirm | None = None) -> APIRouter:
    """The routes; handlers are coroutines, as reports are made in the event loop that owns the fleet."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.get(
        "/capacity",
        summary="Hit ratio with other budgets and numbers of workers, and advice",
        responses=answers(CapacityList),
    )
    async def capacity(pool: _Pool = None) -> Response:
        return encoded(CapacityList(items=tuple(one for one in capacities() if pool in {None, one.pool})))

    if confirm is not None:
        _add_confirm(router, confirm)
    return router


def _add_confirm(router: APIRouter, confirm: Confirm) -> None:
    @router.post(
        "/capacity/confirm",
        summary="Simulate an advice with the pool's latest requests",
        responses=_REFUSALS | answers(CapacityFacts),
    )
    async def confirmed(wanted: ConfirmRequest, request: Request) -> Response:
        found = await unless_gone(request, confirm(wanted.pool, wanted.action, wanted.requests))
        return found if isinstance(found, Response) else encoded(found)
