"""``/admin/v1/access``: whether requests without an API key are served, and opening the gateway to them."""

from __future__ import annotations

from fastapi import APIRouter

from cachefleet_controlplane.admin import tenant_schemas as told
from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.store.access_marker import ClosedReason
from cachefleet_controlplane.tenants.directory import Directory


def access_routes(service: TenantService) -> APIRouter:
    """The routes under ``/access``."""
    router = APIRouter(tags=["tenants"], responses=ERRORS, prefix="/access")

    @router.get("", summary="Whether requests without an API key are served")
    async def access() -> told.Access:
        return shown_access(service.tenants.directory)

    @router.post("/open", summary="Serve requests without an API key again", responses=refusals(409))
    async def admit_all() -> told.Access:
        await service.admit_all()
        return shown_access(service.tenants.directory)

    return router


def shown_access(directory: Directory) -> told.Access:
    """The access that a directory gives to requests without a key, as the API shows it."""
    if directory.open:
        return told.Access(open=True, reason=told.AccessReason.OPEN)
    if directory.keys:
        return told.Access(open=False, reason=told.AccessReason.KEYS)
    if directory.closed is not ClosedReason.NO:
        return told.Access(open=False, reason=told.AccessReason(directory.closed))
    return told.Access(open=False, reason=told.AccessReason.REQUIRED)
