"""``/console/alerts``: what is wrong, and what to do."""

from __future__ import annotations

from starlette.responses import Response

from cachefleet_controlplane.console.visit import Visit


async def alert_page(visit: Visit) -> Response:
    """The findings, the most severe first, as the admin API has them."""
    answer = await visit.ask("GET", "/findings")
    return visit.page(
        "alerts.html",
        items=answer.items,
        absent=answer.status == 404,
        problem=answer.problem,
    )
