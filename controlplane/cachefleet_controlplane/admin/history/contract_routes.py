"""``/admin/v1/contracts``: tenants' cache contracts, met or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from cachefleet_controlplane.admin.admin_openapi import ERRORS, answers
from cachefleet_controlplane.admin.answers.entity_tags import encoded
from cachefleet_controlplane.cache_contracts.contract_report import ContractState, ContractStates

Contracts = Callable[[], Sequence[ContractState]]

_Filter = Annotated[str | None, Query(min_length=1, max_length=512)]


def contract_routes(contracts: Contracts) -> APIRouter:
    """The route of cache contracts; a coroutine, so that it runs in the event loop that owns them."""
    router = APIRouter(tags=["tenants"], responses=ERRORS)

    @router.get(
        "/contracts", summary="Tenants' cache contracts: met or not, and why not", responses=answers(ContractStates)
    )
    async def of_all(pool: _Filter = None, tenant: _Filter = None) -> Response:
        found = (one for one in contracts() if pool in {None, one.pool} and tenant in {None, one.tenant})
        return encoded(ContractStates(tuple(found)))

    return router
