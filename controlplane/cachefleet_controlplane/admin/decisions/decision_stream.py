"""``GET /admin/v1/decisions/stream``: decisions as they are made, as server-sent events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cachefleet_controlplane.admin.admin_openapi import ERRORS
from cachefleet_controlplane.admin.auth_middleware import Still, still_allowed
from cachefleet_controlplane.admin.decisions import decision_presenters
from cachefleet_controlplane.admin.decisions.decision_query import LiveQuery
from cachefleet_controlplane.store.decision_feed import MAX_VIEWERS, DecisionFeed, TooManyViewersError, Viewer
from cachefleet_controlplane.store.decision_records import DecisionRecord
from cachefleet_controlplane.wire.event_stream import EventStream, event

MEDIA_TYPE: Final = "text/event-stream"
HEARTBEAT_SECONDS: Final = 15.0
"""A comment is sent where nothing else was for so long, so that a connection that is gone is noticed."""
CHECK_SECONDS: Final = 15.0
"""After so long it is asked again whether a viewer may look on."""
AGAIN_MILLISECONDS: Final = 2000
"""When a viewer that was cut off should come again."""
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
    async def stream(asked: Annotated[LiveQuery, Query()], request: Request) -> Response:
        try:
            viewer = feed.join(asked.wanted())
        except TooManyViewersError as error:
            raise HTTPException(503, f"{MAX_VIEWERS} are looking already", headers={"Retry-After": "5"}) from error
        return _Stream(feed, viewer, still_allowed(request))

    return router


class _Stream(Response):
    """What a viewer is sent. It leaves the feed however this ends, also before its first event."""

    def __init__(self, feed: DecisionFeed, viewer: Viewer, still: Still) -> None:
        super().__init__(media_type=MEDIA_TYPE)
        self._feed, self._viewer, self._still = feed, viewer, still

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await EventStream(_events(self._viewer, self._still))(scope, receive, send)
        finally:
            self._feed.leave(self._viewer)


async def _events(viewer: Viewer, still: Still) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % AGAIN_MILLISECONDS
    ended, checked = False, time.monotonic()
    while not ended:
        ended = viewer.ended
        records, dropped = await viewer.take(seconds=HEARTBEAT_SECONDS)
        if time.monotonic() - checked >= CHECK_SECONDS:
            if not await still():
                return
            checked = time.monotonic()
        if dropped:
            yield event("dropped", b'{"decisions": %d}' % dropped)
        for published in records:
            published.shown = published.shown or _event(published.record)
            yield published.shown
        if not (records or ended):
            yield b": still here\n\n"


def _event(record: DecisionRecord) -> bytes:
    shown = decision_presenters.decision(record).model_dump_json(by_alias=True)
    return f"event: decision\nid: {record.id}\ndata: {shown}\n\n".encode()
