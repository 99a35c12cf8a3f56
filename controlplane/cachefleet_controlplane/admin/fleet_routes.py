"""Routes of the admin API for pools, workers and the routing policy."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from fastapi import APIRouter, HTTPException, Path, Query, Response

from cachefleet_controlplane.admin import schemas
from cachefleet_controlplane.admin.admin_openapi import ERRORS, answers, refusals
from cachefleet_controlplane.admin.answers.entity_tags import (
    CHANGED,
    UNCHANGED,
    IfMatch,
    IfNoneMatch,
    encoded,
    encoded_tagged,
    entity_tag,
    expecting,
    tagged,
)
from cachefleet_controlplane.admin.answers.pages import After, ManyLimit, page
from cachefleet_controlplane.routing.decision import RoutingPolicy
from cachefleet_controlplane.workers.views import FleetView, IdleCacheList
from cachefleet_core.fleet_status.pool_facts import PoolDetail, PoolList
from cachefleet_core.fleet_status.worker_facts import WorkerList

Name = Annotated[str, Path(min_length=1, max_length=253)]
Filter = Annotated[str | None, Query(min_length=1, max_length=512)]
_POOL = "/pools/{namespace}/{name}"
_FOUND_OR_NOT = refusals(404) | UNCHANGED


class AdminFleet(Protocol):
    """What the admin API needs of ``fleet.Fleet``."""

    policy: RoutingPolicy

    def view(self) -> FleetView:
        """All pools and workers at this time."""
        ...


# The handlers are coroutines, so that they run in the event loop that owns the fleet.


def fleet_routes(fleet: AdminFleet) -> APIRouter:
    """The routes of pools, workers and tenants' idle caches."""
    router = APIRouter(tags=["fleet"], responses=ERRORS)

    @router.get("/pools", summary="All pools", responses=answers(PoolList) | UNCHANGED)
    async def pools(if_none_match: IfNoneMatch = None) -> Response:
        return encoded_tagged(PoolList(items=fleet.view().pools), if_none_match)

    @router.get(_POOL, summary="One pool and its workers", responses=answers(PoolDetail) | _FOUND_OR_NOT)
    async def pool(namespace: Name, name: Name, if_none_match: IfNoneMatch = None) -> Response:
        view, key = fleet.view(), f"{namespace}/{name}"
        facts = next((pool for pool in view.pools if pool.key == key), None)
        if facts is None:
            raise HTTPException(404, f"no pool {key}")
        members = tuple(worker for worker in view.workers if worker.pool == key)
        return encoded_tagged(PoolDetail(**msgspec.structs.asdict(facts), members=members), if_none_match)

    @router.get(
        "/workers",
        summary="Workers: load, held blocks, cache value, freshness, differences",
        responses=answers(WorkerList),
    )
    async def workers(pool: Filter = None, after: After = None, limit: ManyLimit = 1000) -> Response:
        among = [worker for worker in fleet.view().workers if pool is None or worker.pool == pool]
        shown, following = page(among, lambda worker: worker.id, after=after, limit=limit)
        return encoded(WorkerList(items=tuple(shown), total=len(among), next=following))

    @router.get(
        "/idle-cache",
        summary="What tenants have of the idle caches",
        tags=["tenants"],
        responses=answers(IdleCacheList),
    )
    async def idle_cache(pool: Filter = None) -> Response:
        return encoded(IdleCacheList(tuple(each for each in fleet.view().tenants if pool in {None, each.pool})))

    return router


def routing_routes(fleet: AdminFleet) -> APIRouter:
    """The routes of the routing policy."""
    router = APIRouter(tags=["routing"], responses=ERRORS)

    @router.get("/routing", summary="The routing policy in force", response_model=schemas.Routing, responses=UNCHANGED)
    async def routing(response: Response, if_none_match: IfNoneMatch = None) -> schemas.Routing | Response:
        return tagged(schemas.Routing(policy=fleet.policy), response, if_none_match)

    @router.put("/routing", summary="Change the routing policy of this replica, until it restarts", responses=CHANGED)
    async def route_by(wanted: schemas.Routing, response: Response, if_match: IfMatch = None) -> schemas.Routing:
        expecting(if_match, lambda policy: schemas.Routing(policy=policy))(fleet.policy)
        fleet.policy = wanted.policy
        response.headers["etag"] = entity_tag(wanted)
        return wanted

    return router
