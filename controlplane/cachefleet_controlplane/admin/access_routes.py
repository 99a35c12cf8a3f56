"""``/admin/v1/access``: whether requests without an API key are served, and opening the gateway to them."""

from __future__ import annotations

from fastapi import APIRouter

from cachefleet_controlplane.admin import tenant_schemas
from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.store.access_marker import ClosedReason
from cachefleet_controlplane.tenants.directory import Directory


def access_routes(service: TenantService) -> APIRouter:
    """The routes under ``/access``."""
    router = APIRouter(tags=["tenants"], responses=ERRORS, prefix="/access")

    @router.get("", summary="Whether requests without an API key are served")
    async def access() -> tenant_schemas.Access:
        return shown_access(service.tenants.directory)

    @router.post("/open", summary="Serve requests without an API key again", responses=refusals(409))
    async def admit_all() -> tenant_schemas.Access:
        await service.admit_all()
        return shown_access(service.tenants.directory)

    return router


def shown_access(directory: Directory) -> tenant_schemas.Access:
    """The access that a directory gives to requests without a key, as the API shows it."""
    if directory.open:
        return tenant_schemas.Access(open=True, reason=tenant_schemas.AccessReason.OPEN)
    if directory.keys:
        return tenant_schemas.Access(open=False, reason=tenant_schemas.AccessReason.KEYS)
    if directory.closed is not ClosedReason.NO:
        return tenant_schemas.Access(open=False, reason=tenant_schemas.AccessReason(directory.closed))
    return tenant_schemas.Access(open=False, reason=tenant_schemas.AccessReason.REQUIRED)
