"""``/console/capacity``: the hit curve of each pool, what is worth doing by it, and which worker would go first."""

from __future__ import annotations

from starlette.responses import Response

from cachefleet_controlplane.console.pages.pool_choice import chosen_pool, pool_keys
from cachefleet_controlplane.console.visit import Visit


async def capacity_page(visit: Visit) -> Response:
    """The curves of one pool or of all."""
    pool = chosen_pool(visit)
    answer = await visit.ask("GET", "/capacity", {"pool": pool} if pool else {})
    return visit.page(
        "capacity.html",
        items=answer.items,
        absent=answer.status == 404,
        problem=answer.problem,
        pool=pool,
        pools=await pool_keys(visit),
    )
