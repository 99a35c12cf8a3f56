"""``/console/capacity``: the hit curve of each pool, what is worth doing by it, and which worker would go first."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from cachefleet_controlplane.console.admin_calls import AdminAnswer
from cachefleet_controlplane.console.pages.pool_choice import chosen_pool, pool_keys
from cachefleet_controlplane.console.visit import Visit

_CONFIRM: Final = ("POST", "/capacity/confirm")


async def capacity_page(visit: Visit) -> Response:
    """The curves of one pool or of all."""
    return await _shown(visit, chosen_pool(visit))


async def confirm_advice(visit: Visit) -> Response:
    """An advice is simulated, and the page shown with what came of it."""
    form = await visit.form()
    named = {name: form[name] for name in ("pool", "action") if form.get(name)}
    answer = await visit.ask(*_CONFIRM, body=named)
    return await _shown(visit, form.get("shown", ""), refused=answer)


async def _shown(visit: Visit, pool: str, *, refused: AdminAnswer | None = None) -> Response:
    answer = await visit.ask("GET", "/capacity", {"pool": pool} if pool else {})
    return visit.page(
        "capacity.html",
        items=answer.items,
        absent=answer.status == 404,
        problem=answer.problem or (refused.problem if refused else ""),
        may_confirm=await visit.may(*_CONFIRM),
        pool=pool,
        pools=await pool_keys(visit),
    )
