"""``/console/``: pools and workers, live, and the last hour."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cachefleet_controlplane.console.live.fleet_rows import WorkerRow
from cachefleet_controlplane.console.live.live_fleet import TICK_SECONDS
from cachefleet_controlplane.console.pages.alert_page import alert_count
from cachefleet_controlplane.console.sign_in.visitor_sessions import session_id
from cachefleet_controlplane.console.visit import Visit
from cachefleet_controlplane.internal_auth.authorizer import AccessUnavailableError, Authorization
from cachefleet_controlplane.wire.event_stream import EventStream, event

MAX_VIEWERS: Final = 100
CHECK_TICKS: Final = 8
"""After so many ticks it is asked again whether a viewer may look on."""
OPEN_WORKERS: Final = 40
"""With more workers than these, pools are shown closed until somebody opens them."""
_QUESTION: Final = ("GET", "/workers")


async def fleet_page(visit: Visit) -> Response:
    """The page as it is now; its script then follows ``/events``."""
    await visit.check(*_QUESTION)
    live = visit.parts.live
    live.refresh()
    members: defaultdict[str, list[WorkerRow]] = defaultdict(list)
    for worker in live.workers:
        members[worker.pool].append(worker)
    known = {pool.key for pool in live.pools}
    return visit.page(
        "fleet.html",
        live=live,
        members=members,
        strays=[worker for worker in live.workers if worker.pool not in known],
        opened=len(live.workers) <= OPEN_WORKERS,
        alerts=await alert_count(visit),
    )


class FleetEvents:
    """``/console/events``: what has changed on the fleet page, every TICK_SECONDS."""

    def __init__(self) -> None:
        self._viewers = 0

    async def __call__(self, visit: Visit) -> ASGIApp:
        """The stream. HTTPException 503 where MAX_VIEWERS look on already."""
        await visit.check(*_QUESTION)
        if self._viewers >= MAX_VIEWERS:
            raise HTTPException(503, f"{MAX_VIEWERS} pages follow this control plane already; close one.")
        self._viewers += 1  # nothing is waited for since it was compared

        async def follow(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await EventStream(_changes(visit))(scope, receive, send)
            finally:
                self._viewers -= 1

        return follow


async def _changes(visit: Visit) -> AsyncIterator[bytes]:
    live, seen, tick = visit.parts.live, _since(visit), 0
    while not visit.parts.ended.is_set():
        if tick % CHECK_TICKS == CHECK_TICKS - 1 and (refusal := await _refusal(visit)):
            yield event("refused", refusal.encode())
            return
        live.refresh()
        yield b"id: %d\n" % live.version + event("rows", live.changes(seen))
        seen, tick = live.version, tick + 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(visit.parts.ended.wait(), TICK_SECONDS)
    yield event("ended", b"{}")


async def _refusal(visit: Visit) -> str:
    """Why a viewer may not look on, "" where it may or that is not known now."""
    if visit.parts.sessions.find(session_id(visit.request), use=False) is not visit.session:
        return "ended"
    try:
        access = await visit.access(*_QUESTION)
    except AccessUnavailableError:
        return ""
    return "" if access is Authorization.ALLOWED else "refused"


def _since(visit: Visit) -> int:
    """The version that the page has; 0 shows everything again."""
    told = visit.request.headers.get("last-event-id") or visit.request.query_params.get("since", "")
    version = int(told) if told.isdecimal() and len(told) < 16 else 0
    return version if version <= visit.parts.live.version else 0
