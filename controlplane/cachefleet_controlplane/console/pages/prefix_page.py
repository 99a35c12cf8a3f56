"""``/console/prefixes``: the hottest prefixes, by keyed name."""

from __future__ import annotations

from starlette.responses import Response

from cachefleet_controlplane.console.pages.pool_choice import chosen_pool, pool_keys
from cachefleet_controlplane.console.visit import Visit


async def prefix_page(visit: Visit) -> Response:
    """The prefixes of one pool's model or of all."""
    pool = chosen_pool(visit)
    answer = await visit.ask("GET", "/prefixes", {"limit": "100"} | ({"pool": pool} if pool else {}))
    return visit.page(
        "prefixes.html",
        items=answer.items,
        absent=answer.status == 404,
        problem=answer.problem,
        pool=pool,
        pools=await pool_keys(visit),
    )
