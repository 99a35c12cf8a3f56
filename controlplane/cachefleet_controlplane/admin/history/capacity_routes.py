"""``GET /admin/v1/capacity``: what caches of other sizes would serve of pools' requests, and what is worth doing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from cachefleet_controlplane.admin.admin_openapi import ERRORS, answers
from cachefleet_controlplane.admin.answers.entity_tags import encoded
from cachefleet_core.fleet_status.capacity_facts import CapacityFacts, CapacityList

Capacities = Callable[[], Sequence[CapacityFacts]]
_Pool = Annotated[str | None, Query(min_length=1, max_length=512, description='"namespace/name"; all pools without.')]


def capacity_routes(capacities: Capacities) -> APIRouter:
    """The route; its handler is a coroutine, as reports are made in the event loop that owns the fleet."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.get(
        "/capacity",
        summary="Hit ratio with other budgets and numbers of workers, and advice",
        responses=answers(CapacityList),
    )
    async def capacity(pool: _Pool = None) -> Response:
        return encoded(CapacityList(items=tuple(one for one in capacities() if pool in {None, one.pool})))

    return router
