"""What exchanges on a tenant's kept objects (files, batches) share: whose they are, which one is named, its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cachefleet_controlplane.gateway.admit.tenant_admission import admitted_request
from cachefleet_controlplane.gateway.files.file_object import is_object_id
from cachefleet_controlplane.wire.errors import ApiError, shown
from cachefleet_controlplane.wire.http_exchange import JSON, Reply, Scope
from cachefleet_core.tenancy import TenantId


def tenant_of(scope: Scope) -> TenantId:
    """Return the tenant of an admitted request."""
    return admitted_request(scope).tenant.name


def named_id(scope: Scope, path: str) -> str:
    """Return the id of the object that a request names below ``path``. ApiError 404 for what is no id."""
    asked: str = scope["path"]
    named = asked.removeprefix(f"{path}/").partition("/")[0]
    if not is_object_id(named):
        raise ApiError(404, f"Nothing found with id '{shown(named)}'.", param="id")
    return named


async def tell(reply: Reply, told: Mapping[str, Any]) -> None:
    """Answer with an object."""
    await reply.whole(200, [JSON], msgspec.json.encode(told))
