"""``/admin/v1/tenants``: routes for tenants and their API keys."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Path, Response

from cachefleet_controlplane.admin import tenant_schemas
from cachefleet_controlplane.admin.admin_openapi import ERRORS, refusals
from cachefleet_controlplane.admin.answers.entity_tags import (
    CHANGED,
    UNCHANGED,
    IfMatch,
    IfNoneMatch,
    entity_tag,
    expecting,
    tagged,
)
from cachefleet_controlplane.admin.answers.pages import MOST, After, ManyLimit, page
from cachefleet_controlplane.admin.tenant_service import TenantService
from cachefleet_controlplane.store.tenant_records import PICOS, KeyRecord, TenantRecord, picos
from cachefleet_core.fleet_status.tenant_limits import BUDGET, SPEND
from cachefleet_core.pool.section import TENANT
from cachefleet_core.tenancy import TenantId

Name = Annotated[str, Path(min_length=1, max_length=128, pattern=TENANT)]
KeyId = Annotated[str, Path(min_length=1, max_length=32)]

MAX_LIFE_DAYS: Final = 36_500
MAX_LIFE_SECONDS: Final = MAX_LIFE_DAYS * 86_400

_ONE: Final = "/tenants/{tenant}"
_NOT_FOUND: Final = refusals(404)
_CONFLICT: Final = refusals(409)
_BOTH: Final = _NOT_FOUND | _CONFLICT
_LATER: Final[dict[int | str, dict[str, Any]]] = {
    202: {"model": tenant_schemas.RevokedKey, "description": "In force here, and written once the store takes it"}
}


def tenant_routes(service: TenantService) -> APIRouter:
    """The routes under ``/tenants``."""
    router = APIRouter(tags=["tenants"], responses=ERRORS)

    @router.get("/tenants", summary="Tenants", response_model=tenant_schemas.TenantList, responses=UNCHANGED)
    async def tenants(
        response: Response, after: After = None, limit: ManyLimit = MOST, if_none_match: IfNoneMatch = None
    ) -> tenant_schemas.TenantList | Response:
        found = sorted(await service.all(), key=lambda tenant: tenant.name)  # databases sort by their own rules
        shown, following = page(found, lambda tenant: tenant.name, after=after, limit=limit)
        document = tenant_schemas.TenantList(items=tuple(map(shown_tenant, shown)), next=following)
        return tagged(document, response, if_none_match)

    @router.post("/tenants", summary="Make a tenant", status_code=201, responses=_CONFLICT)
    async def create(wanted: tenant_schemas.NewTenant, response: Response) -> tenant_schemas.Tenant:
        fields = _stored(wanted.model_dump()) | {"name": TenantId(wanted.name)}
        made = shown_tenant(await service.create(TenantRecord(**fields)))
        response.headers["location"] = f"/admin/v1/tenants/{quote(wanted.name, safe='')}"
        return made

    @router.get(_ONE, summary="One tenant", response_model=tenant_schemas.Tenant, responses=_NOT_FOUND | UNCHANGED)
    async def read_tenant(
        tenant: Name, response: Response, if_none_match: IfNoneMatch = None
    ) -> tenant_schemas.Tenant | Response:
        return tagged(shown_tenant(await service.tenant(TenantId(tenant))), response, if_none_match)

    @router.patch(_ONE, summary="Change a tenant", responses=_BOTH | CHANGED)
    async def change(
        tenant: Name, wanted: tenant_schemas.TenantChange, response: Response, if_match: IfMatch = None
    ) -> tenant_schemas.Tenant:
        fields = _stored(wanted.model_dump(exclude_unset=True))
        changed = shown_tenant(await service.change(TenantId(tenant), fields, expecting(if_match, shown_tenant)))
        response.headers["etag"] = entity_tag(changed)
        return changed

    @router.delete(_ONE, summary="Delete a tenant and its keys", status_code=204, responses=_BOTH | CHANGED)
    async def delete(tenant: Name, if_match: IfMatch = None) -> None:
        await service.delete(TenantId(tenant), expecting(if_match, shown_tenant))

    return router


def key_routes(service: TenantService) -> APIRouter:
    """The routes under ``/tenants/{tenant}/keys``."""
    router = APIRouter(tags=["tenants"], responses=ERRORS, prefix="/tenants/{tenant}/keys")

    @router.get("", summary="A tenant's keys", responses=_NOT_FOUND)
    async def keys(tenant: Name) -> tenant_schemas.KeyList:
        now = service.wall_clock()
        return tenant_schemas.KeyList(items=tuple(shown_key(key, now) for key in await service.keys(TenantId(tenant))))

    @router.post("", summary="Make a key, which is told this once", status_code=201, responses=_BOTH)
    async def create(tenant: Name, wanted: tenant_schemas.NewKey, response: Response) -> tenant_schemas.CreatedKey:
        expires = _future(wanted.expires, service.wall_clock())
        return _created_key(await service.new_key(TenantId(tenant), expires, wanted.models, _budget(wanted)), response)

    @router.post("/rotate", summary="Make a key, and let the tenant's others end", status_code=201, responses=_BOTH)
    async def rotate(tenant: Name, wanted: tenant_schemas.Rotation, response: Response) -> tenant_schemas.CreatedKey:
        expires = _future(wanted.expires, service.wall_clock())
        budget = _budget(wanted) if wanted.model_fields_set & set(BUDGET) else None
        grace = wanted.grace_seconds
        made = await service.rotate(TenantId(tenant), expires, wanted.models, budget, grace_seconds=grace)
        return _created_key(made, response)

    @router.delete("/{key_id}", summary="Revoke a key", responses=_BOTH | _LATER)
    async def revoke(tenant: Name, key_id: KeyId, response: Response) -> tenant_schemas.RevokedKey:
        record, stored = await service.revoke(TenantId(tenant), key_id)
        response.status_code = 200 if stored else 202
        return tenant_schemas.RevokedKey.model_validate(_key_fields(record, service.wall_clock()) | {"stored": stored})

    return router


def shown_tenant(tenant: TenantRecord) -> tenant_schemas.Tenant:
    """A tenant as the API shows it."""
    return tenant_schemas.Tenant.model_validate(asdict(tenant) | _spend(tenant) | {"created": _time(tenant.created)})


def shown_key(key: KeyRecord, now: float) -> tenant_schemas.Key:
    """A key without its hash, with its state at ``now`` (Unix seconds)."""
    return tenant_schemas.Key.model_validate(_key_fields(key, now))


def _spend(holder: TenantRecord | KeyRecord) -> dict[str, float | None]:
    """What a tenant or key may spend, in the currency."""
    limits = {name: getattr(holder, name, None) for name in SPEND}
    return {name: most / PICOS for name, most in limits.items() if most is not None}


def _budget(wanted: tenant_schemas.NewKey) -> dict[str, int | None]:
    return _stored({name: getattr(wanted, name) for name in BUDGET})


def _stored(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a tenant or key as they are stored, with what it may spend in picos."""
    spend = {name: picos(fields[name]) for name in SPEND if fields.get(name) is not None}
    return fields | spend


def _created_key(made: tuple[KeyRecord, str], response: Response) -> tenant_schemas.CreatedKey:
    record, key = made
    response.headers["cache-control"] = "no-store"
    response.headers["location"] = f"/admin/v1/tenants/{quote(record.tenant, safe='')}/keys/{record.id}"
    return tenant_schemas.CreatedKey.model_validate(_key_fields(record, record.created) | {"key": key})


def _key_fields(key: KeyRecord, now: float) -> dict[str, Any]:
    times = {name: _time(getattr(key, name)) for name in ("created", "expires", "revoked")}
    fields = {name: getattr(key, name) for name in ("id", "tenant", "hint", "models")} | {"state": key.state(now)}
    return fields | key.budget | _spend(key) | times


def _time(unix: float | None) -> datetime | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC)


def _future(expires: datetime | None, now: float) -> float | None:
    if expires is None:
        return None
    if not now < expires.timestamp() <= now + MAX_LIFE_SECONDS:
        raise HTTPException(422, f"body.expires must be in the future, by at most {MAX_LIFE_DAYS} days")
    return expires.timestamp()
