"""``/admin/v1/history``, ``/lost-hits``, ``/prompt-causes`` and ``/prefixes``: what the caches did in the last hour."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final

from fastapi import APIRouter, HTTPException, Query
from pydantic import AwareDatetime

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.history import history_presenters as presenters
from cachefleet_controlplane.admin.history import history_schemas as schemas
from cachefleet_controlplane.history.cache_history import FLEET, STEP_SECONDS, CacheHistory
from cachefleet_controlplane.hot_prefixes.hot_prefix import ShownPrefix
from cachefleet_controlplane.prompt_causes.cause_ledger import CauseLedger

Prefixes = Callable[[str | None, int], Awaitable[Sequence[ShownPrefix]]]
"""The hottest prefixes of a pool's model (None: of all), at most so many."""

_HOUR: Final = 3600
_Pool = Annotated[str | None, Query(min_length=1, max_length=512, description='"namespace/name"; all pools without.')]
_Limit = Annotated[int, Query(ge=1, le=256, description="How many at most.")]
_Since = Annotated[AwareDatetime | None, Query(description="Steps that begin then or later.")]
_Bucket = Annotated[
    int,
    Query(
        ge=STEP_SECONDS,
        le=_HOUR,
        alias="bucketSeconds",
        description=f"Length of a bucket: a multiple of {STEP_SECONDS}.",
    ),
]


@dataclass(frozen=True, slots=True)
class HistorySource:
    """What the routes show; ``clock`` is Unix time in seconds."""

    history: CacheHistory
    prefixes: Prefixes
    ledger: CauseLedger = field(default_factory=CauseLedger)
    clock: Callable[[], float] = time.time


# The handlers are coroutines, so that they run in the event loop that owns the history.


def history_routes(source: HistorySource) -> APIRouter:
    """The routes of the last hour."""
    router = APIRouter(tags=["history"], responses=ERRORS)

    @router.get("/history", summary="The last hour in steps: tokens, load, blocks")
    async def history(pool: _Pool = None, since: _Since = None) -> schemas.History:
        first = 0.0 if since is None else since.timestamp()
        steps = source.history.steps(pool or FLEET, source.clock())
        return presenters.history(step for step in steps if step.at >= first)

    @router.get("/lost-hits", summary="Tokens that were not served from cache, by cause")
    async def lost_hits(pool: _Pool = None, bucket_seconds: _Bucket = 60) -> schemas.LostHits:
        if bucket_seconds % STEP_SECONDS:
            raise HTTPException(422, f"query.bucketSeconds must be a multiple of {STEP_SECONDS}")
        now = source.clock()
        return presenters.lost_hits(source.history.steps(pool or FLEET, now), now, bucket_seconds=bucket_seconds)

    @router.get("/prompt-causes", summary="What in tenants' prompts is computed again, and what its mend is worth")
    async def prompt_causes(pool: _Pool = None, limit: _Limit = 50) -> schemas.PromptCauses:
        return presenters.prompt_causes(source.ledger.offences(pool, source.clock(), most=limit))

    @router.get("/prefixes", summary="The hottest prefixes: who holds them, and what they save")
    async def prefixes(pool: _Pool = None, limit: _Limit = 50) -> schemas.HotPrefixList:
        found = await source.prefixes(pool, limit)
        return schemas.HotPrefixList(items=tuple(map(schemas.HotPrefix.model_validate, found)))

    return router
