"""``GET /admin/v1/decisions/stream``: decisions as they are made, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query
from starlette.responses import StreamingResponse

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.admin.decisions.decision_query import LiveQuery
from cachefleet_controlplane.store.decision_feed import MAX_VIEWERS, DecisionFeed, TooManyViewersError, Viewer
from cachefleet_controlplane.store.decision_records import DecisionRecord

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
"""A comment is sent where nothing else was for so long, so that a connection that is gone is noticed."""
AGAIN_MILLISECONDS: Final = 2000
"""When a viewer that was cut off should come again."""
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": 'Events `decision`, whose data is a decision, and `dropped`: {"decisions": N}',
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


def stream_routes(feed: DecisionFeed) -> APIRouter:
    """The route ``GET /decisions/stream``."""
    router = APIRouter(tags=["decisions"], responses=ERRORS)

    @router.get("/decisions/stream", summary="Decisions as they are made", responses=_EVENTS, response_model=None)
    async def stream(asked: Annotated[LiveQuery, Query()]) -> StreamingResponse:
        try:
            viewer = feed.join(asked.wanted())
        except TooManyViewersError as error:
            raise HTTPException(503, f"{MAX_VIEWERS} are looking already", headers={"Retry-After": "5"}) from error
        return StreamingResponse(_events(feed, viewer), media_type=MEDIA_TYPE, headers=_HEADERS)

    return router


async def _events(feed: DecisionFeed, viewer: Viewer) -> AsyncIterator[str]:
    try:
        yield f"retry: {AGAIN_MILLISECONDS}\n\n"
        ended = False
        while not ended:
            ended = viewer.ended
            records, dropped = await viewer.take(seconds=HEARTBEAT_SECONDS)
            if dropped:
                yield f'event: dropped\ndata: {{"decisions": {dropped}}}\n\n'
            for record in records:
                yield _event(record)
            if not (records or ended):
                yield ": still here\n\n"
    finally:
        feed.leave(viewer)


def _event(record: DecisionRecord) -> str:
    shown = decision_presenters.decision(record).model_dump_json(by_alias=True)
    return f"event: decision\nid: {record.id}\ndata: {shown}\n\n"
