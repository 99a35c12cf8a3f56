"""The choice of a pool that several views offer."""

from __future__ import annotations

from cachefleet_controlplane.console.visit import Visit


def chosen_pool(visit: Visit) -> str:
    """The pool that a page was asked for, "" for all."""
    return visit.request.query_params.get("pool", "").strip()


async def pool_keys(visit: Visit) -> list[str]:
    """All pools, as "namespace/name"."""
    answer = await visit.ask("GET", "/pools")
    return [one["key"] for one in answer.items]
