"""``/console/data/history``: the last hour as the admin API gives it, for charts, and how many alerts there are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from starlette.responses import JSONResponse, Response

from cachefleet_controlplane.console.pages.alert_page import alert_count
from cachefleet_controlplane.console.visit import Visit

_ABSENT: Final = "This control plane keeps no history."


async def history_data(visit: Visit) -> Response:
    """Points of one pool or of all, from ``since`` on; or ``unknown``, with the reason why there are none."""
    asked = visit.request.query_params
    answer = await visit.ask("GET", "/history", {name: asked[name] for name in ("pool", "since") if asked.get(name)})
    alerts = {"alerts": asdict(await alert_count(visit))}
    if answer.ok:
        return JSONResponse(answer.data | alerts)
    unknown = _ABSENT if answer.status == 404 else f"The last hour is not known: {answer.problem}."
    return JSONResponse({"unknown": unknown} | alerts)
